"""An append-only episode, whole and cut into contexts: loss and gradient under every loss and reduction.

The same tokens are run once as one sequence each, and once with every further turn in a context of its own that repeats
what stands before it. Losses come from the registry, each with its defaults; what does not consume token advantages is
listed with what becomes of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlhf_core.distributed.group import LocalStrategy
from rlhf_core.plugins.registry import Registry
from rlhf_core.rl.config import OnlineTrainerConfig
from rlhf_core.training.forward import ForwardOptions
from rlhf_core.training.learner import Learner
from rlhf_core.training.policy_module import PolicyModule
from rlhf_core.training.rollout_batch import TrainingSample
from rlhf_testing import make_context

REDUCTIONS = ("token_mean", "sequence_mean", "constant")
REFUSED = {
    "pairs": "iterative DPO refuses an episode whose context was rewritten, when it makes the pair",
    "unpaired": "learns from rows of a data set, which have no contexts",
    "labels": "learns from rows of a data set, which have no contexts",
}


class _Capture(LocalStrategy):
    """Remembers the gradient before clipping."""

    def clip_grad_norm(self, module: torch.nn.Module, max_norm: float) -> float:
        """As the strategy does, after a copy was made."""
        self.gradient = {k: p.grad.clone() for k, p in module.named_parameters() if p.grad is not None}
        return super().clip_grad_norm(module, max_norm)


def policy() -> LlamaForCausalLM:
    """A small model with random weights, the same every time."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        pad_token_id=2,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


def episodes() -> list[TrainingSample]:
    """Two groups of episodes with turns of the policy and results between them."""
    rng = np.random.default_rng(3)
    prompts = [tuple(int(t) for t in rng.integers(0, 64, n)) for n in (3, 6)]
    rows: list[TrainingSample] = []
    for i in range(6):
        lengths = rng.integers(2, 6, 5 if i % 2 else 3)  # the policy's turn, a result, the policy's turn, ...
        mask = np.concatenate([np.full(n, k % 2 == 0) for k, n in enumerate(lengths)])
        ids = tuple(int(t) for t in rng.integers(0, 64, len(mask)))
        old = np.where(mask, rng.normal(-4, 0.2, len(mask)), 0).astype(np.float32)
        advantages = np.where(mask, rng.normal(), 0).astype(np.float32)
        rows.append(
            TrainingSample(
                f"e{i}", prompts[i // 3], ids, mask, advantages, behaviour_T=old, old_T=old, ref_T=old + np.float32(0.1)
            )
        )
    return rows


def cut(sample: TrainingSample) -> TrainingSample:
    """The same episode, every further turn of the policy in a context of its own."""
    starts = [n for n in range(1, len(sample.mask_T)) if sample.mask_T[n] and not sample.mask_T[n - 1]]
    return replace(sample, contexts=tuple((n, (*sample.prompt_ids, *sample.completion_ids[:n])) for n in starts))


def learned(samples: Sequence[TrainingSample], loss: Any, reduction: str, micro: int) -> tuple[float, dict[str, Any]]:
    """(Loss, gradient by parameter) of one update."""
    strategy = _Capture()
    settings = OnlineTrainerConfig(name="t", micro_batch_size=micro, reduction=reduction)  # pyright: ignore[reportArgumentType]
    module = PolicyModule(policy(), 1.0, ForwardOptions())
    metrics = Learner(module, loss, strategy, settings, 1).update(list(samples))
    return float(metrics["loss"]), strategy.gradient


OF_A_MICRO_BATCH = ("clip_cov", "kl_cov")


def rows(only: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """One row per loss and reduction, of these losses only if any are named; one per loss that never sees episodes."""
    registry = Registry(disabled=())
    context = make_context()
    whole = episodes()
    pieces = [cut(sample) for sample in whole]
    for entry in registry.entries("loss"):
        if only and entry.name not in only:
            continue
        chosen = registry.load("loss", entry.qualified)
        if chosen.consumes != "token_advantages":
            yield {"loss": entry.name, "refused": REFUSED.get(str(chosen.consumes), "needs a function of the user's")}
            continue
        if entry.name in OF_A_MICRO_BATCH:
            yield {"loss": entry.name, "refused": "its value depends on what else is in the micro-batch"}
            continue
        for reduction in REDUCTIONS:
            one = learned(whole, chosen.model_validate({"name": entry.name}).build(context), reduction, 6)
            two = learned(pieces, chosen.model_validate({"name": entry.name}).build(context), reduction, 4)
            norm = sum(float(g.double().pow(2).sum()) for g in one[1].values()) ** 0.5
            gap = sum(float((one[1][k] - two[1][k]).double().pow(2).sum()) for k in one[1]) ** 0.5
            yield {
                "loss": entry.name,
                "reduction": reduction,
                "value": one[0],
                "loss_gap": abs(one[0] - two[0]),
                "gradient_norm": norm,
                "gradient_gap": gap / norm,
            }
