"""From which length dividing sequences pays: the memory plan of a pair, by its tokens and the ranks that divide it.

No card is needed. DPO of all weights of Llama 3.1 8B on eight cards of 80 GiB, fsdp, bf16, gradient checkpointing.
Prompts are not shared: the plan counts a CPU's attention, which takes a mask of all tokens by all tokens for that.
"""

from __future__ import annotations

from typing import Any

from rlhf_core.cli.options import open_plugins, resolve_options
from rlhf_core.config import BuildContext
from rlhf_plugin_preflight.memory.plan import requested_placement
from rlhf_plugin_preflight.memory.report import make_report

CARDS, CARD = 8, 80 * 2**30
PROMPT = 64
TOKENS = (16_384, 32_768, 65_536, 131_072)
"""Of both sequences of a pair together."""
SIZES = (1, 2, 4, 8)
SETTINGS = (
    "strategy.name=fsdp",
    "model.gradient_checkpointing=true",
    "trainer.precision=bf16",
    "trainer.micro_batch_size=1",
    "trainer.sample_prompts=0",
    "trainer.share_prefix=false",
)


def planned(model: str, tokens: int, size: int) -> dict[str, Any]:
    """Bytes of each card in the update, and whether they fit."""
    registry, _ = open_plugins()
    settings = (*SETTINGS, f"trainer.max_length={tokens}", f"strategy.sequence_parallel={size}")
    names: dict[str, Any] = {"algo": "dpo", "model": model}
    config = resolve_options(registry, (), settings, names).config.with_precision()
    ctx = BuildContext(config=config, registry=registry, seed=0, world_size=CARDS)
    placement = requested_placement(ctx, "fsdp", CARDS, None, 1, 1)
    report = make_report(ctx, placement, CARD, PROMPT, tokens // 2 - PROMPT)
    phase = report.plan.phases["update"]
    return {"peak": phase.total, "activations": phase.parts.get("activations", 0), "fits": phase.total <= CARD}


def run(model: str = "llama-3.1-8b") -> dict[str, Any]:
    """Bytes by tokens of the sequence and by ``strategy.sequence_parallel``."""
    return {str(tokens): {str(size): planned(model, tokens, size) for size in SIZES} for tokens in TOKENS}
