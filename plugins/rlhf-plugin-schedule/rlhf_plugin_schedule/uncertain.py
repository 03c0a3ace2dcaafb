"""Which tokens learn: those at which the policy is uncertain (``trainer.entropy_quantile``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rlhf_core.distributed import Strategy
from rlhf_core.distributed.group import RankZero
from rlhf_core.training import TrainingSample

Floats = npt.NDArray[np.float32]
TIE = 1e-5
"""Entropies (nats) closer than this are equal; different kernels and batch shapes round differently."""


def keep_uncertain(
    samples: Sequence[TrainingSample], entropies: Sequence[Floats], quantile: float, strategy: Strategy
) -> tuple[list[TrainingSample], dict[str, float]]:
    """Zero the advantages of all but the tokens in the top ``quantile`` of entropy (Wang et al. 2025, section 5).

    The threshold is taken over the whole rollout batch of all ranks, before its first update, so that neither the
    micro-batch size nor the number of processes moves it. Advantages rather than the mask: denominators and the KL
    term keep every token. Completions that begin alike have equal entropies there, up to rounding: tokens tied with the
    threshold are all kept, so that rounding does not choose among them.
    """
    counted = [e[i.mask_T] for i, e in zip(samples, entropies, strict=True)]
    rank_zero = RankZero(strategy)
    shards = rank_zero.gather(counted)
    with rank_zero.section() as section:
        section.sent = [_threshold(shards, quantile)] * len(shards)
    threshold = section.received
    if threshold is None:
        return list(samples), {}
    uncertain = [
        replace(i, advantages_T=np.where(e >= threshold - TIE * (1 + threshold), i.advantages_T, np.float32(0)))
        for i, e in zip(samples, entropies, strict=True)
    ]
    return uncertain, {"entropy_threshold": threshold}


def _threshold(shards: Sequence[Sequence[Floats]], quantile: float) -> float | None:
    """The entropy of which a share of ``quantile`` of all tokens have as much or more; None without tokens."""
    rows = [row for shard in shards for row in shard if len(row)]
    return float(np.quantile(np.concatenate(rows).astype(np.float64), 1 - quantile)) if rows else None
