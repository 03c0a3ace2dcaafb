"""What is charged to the reward of whole rollouts: KL to the reference policy (also reported), and length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlhf_core.functional.kl import kl_value
from rlhf_core.trainers.common.config import KLSettings, OverlongSettings
from rlhf_core.types import Rollout, Score


def charge(score: Score, rollout: Rollout, reference_T: Any, settings: KLSettings) -> Score:
    """Subtract the completion's summed KL estimate from its score; the part ``kl`` stays visible.

    Tokens that the policy did not choose (``Rollout.mask_T``) are not charged.
    """
    if not score.ok or score.value is None:
        return score
    kl = float(_chosen(rollout, kl_value(rollout.logprobs_T, reference_T, settings.estimator)).sum())
    return replace(score, value=score.value - settings.coefficient * kl, parts={**score.parts, "kl": kl})


def charge_length(score: Score, rollout: Rollout, max_tokens: int, settings: OverlongSettings) -> Score:
    r"""Subtract DAPO's soft overlong penalty (Yu et al. 2025, eq. 13); the part ``overlong`` stays visible.

    With L tokens that the policy chose and a cache of C tokens before ``max_tokens`` M:
    :math:`w \cdot \mathrm{clip}((L - (M - C)) / C, 0, 1)`.
    """
    cache = settings.tokens(max_tokens)
    if not cache or not score.ok or score.value is None:
        return score
    length = len(_chosen(rollout, rollout.logprobs_T))
    over = settings.weight * min(1.0, max(0.0, (length - (max_tokens - cache)) / cache))
    return replace(score, value=score.value - over, parts={**score.parts, "overlong": -over})


def measured(rollouts: Sequence[Rollout], references: Sequence[Any]) -> tuple[float, float]:
    """k3 of every token that the policy chose, summed, and the number of those tokens.

    It needs no forward: the engine's logprobs are compared with the reference's, so every rollout counts, those of
    constant groups too.
    """
    rows = [_chosen(r, kl_value(r.logprobs_T, ref, "k3")) for r, ref in zip(rollouts, references, strict=True)]
    return float(sum(float(row.sum(dtype=np.float64)) for row in rows)), float(sum(len(row) for row in rows))


def _chosen(rollout: Rollout, values_T: Any) -> Any:
    return values_T if rollout.mask_T is None else values_T[rollout.mask_T]
