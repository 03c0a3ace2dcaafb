"""From which length dividing sequences pays: the memory plan of one sequence, by tokens and ranks that divide it.

No card is needed. All weights of Llama 3.1 8B, eight cards of 80 GiB, fsdp, bf16, gradient checkpointing.
"""

from __future__ import annotations

from typing import Any

from rlhf_core.cli.options import open_plugins, resolve_options
from rlhf_core.config import BuildContext
from rlhf_plugin_preflight.memory.plan import requested_placement
from rlhf_plugin_preflight.memory.report import make_report

CARDS, CARD = 8, 80 * 2**30
PROMPT = 64
TOKENS = (8_192, 32_768, 65_536, 131_072)
SIZES = (1, 2, 4, 8)
SETTINGS = (
    "strategy.name=fsdp",
    "model.gradient_checkpointing=true",
    "trainer.precision=bf16",
    "trainer.micro_batch_size=1",
    "trainer.sample_prompts=0",
)


def planned(model: str, tokens: int, size: int) -> dict[str, Any]:
    """Bytes of each card in the update, and whether they fit."""
    registry, _ = open_plugins()
    settings = (*SETTINGS, f"trainer.max_length={tokens}", f"strategy.sequence_parallel={size}")
    names: dict[str, Any] = {"algo": "sft", "model": model}
    config = resolve_options(registry, (), settings, names).config.with_precision()
    ctx = BuildContext(config=config, registry=registry, seed=0, world_size=CARDS)
    placement = requested_placement(ctx, "fsdp", CARDS, None, 1, 1)
    report = make_report(ctx, placement, CARD, PROMPT, tokens - PROMPT)
    phase = report.plan.phases["update"]
    return {"peak": phase.total, "activations": phase.parts.get("activations", 0), "fits": phase.total <= CARD}


def run(model: str = "llama-3.1-8b") -> dict[str, Any]:
    """Bytes by tokens of the sequence and by ``strategy.sequence_parallel``."""
    return {str(tokens): {str(size): planned(model, tokens, size) for size in SIZES} for tokens in TOKENS}
