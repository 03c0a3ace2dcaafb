"""What the loop does with entropies: a bonus in the loss, and a policy gradient on uncertain tokens only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_core.batches import LossOutput, TokenBatch
from rlhf_core.protocols import Loss, Strategy
from rlhf_core.trainers.common.training_sample import Floats, TrainingSample

TIE = 1e-5
"""Entropies (nats) closer than this are equal; different kernels and batch shapes round differently."""


class EntropyBonus:
    """``loss_BT - coefficient * H_BT`` (Williams and Peng 1991): the gradient flows through the entropy.

    The bonus is reduced with the loss, as in every other term: a mean per token under ``token_mean``.
    """

    def __init__(self, loss: Loss, coefficient: float) -> None:
        self.loss, self.coefficient = loss, coefficient

    def __call__(self, batch: TokenBatch) -> LossOutput:
        """Return the loss with its bonus; ``batch.entropy_BT`` must be there, with gradient."""
        out = self.loss(batch)
        assert batch.entropy_BT is not None, "an entropy bonus needs entropies"
        return LossOutput(out.loss - self.coefficient * batch.entropy_BT, out.metrics)


def keep_uncertain(
    items: Sequence[TrainingSample], entropies: Sequence[Floats], quantile: float, strategy: Strategy
) -> tuple[list[TrainingSample], dict[str, float]]:
    """Zero the advantages of all but the tokens in the top ``quantile`` of entropy (Wang et al. 2025, section 5).

    The threshold is taken over the whole rollout batch of all ranks, before its first update, so that neither the
    micro-batch size nor the number of processes moves it. Advantages rather than the mask: denominators and the KL
    term keep every token. Completions that begin alike have equal entropies there, up to rounding: tokens tied with the
    threshold are all kept, so that rounding does not choose among them.

    Args:
        items: this rank's.
        entropies: of each item's tokens, ``[T]``.
        quantile: share of the tokens to keep, 0 to 1.
        strategy: for the other ranks' entropies.

    Returns:
        The items, and the metric ``entropy_threshold``.
    """
    mine = [e[i.mask_T] for i, e in zip(items, entropies, strict=True)]
    shards: list[list[Any]] = strategy.gather_objects(mine)
    everything = [row for shard in shards for row in shard if len(row)]
    if not everything:
        return list(items), {}
    threshold = float(np.quantile(np.concatenate(everything).astype(np.float64), 1 - quantile))
    kept = [
        i.with_(advantages_T=np.where(e >= threshold - TIE * (1 + threshold), i.advantages_T, np.float32(0)))
        for i, e in zip(items, entropies, strict=True)
    ]
    return kept, {"entropy_threshold": threshold}
