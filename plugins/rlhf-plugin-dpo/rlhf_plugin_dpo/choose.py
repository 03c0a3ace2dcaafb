"""Preference pairs from scored rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlhf_core.api import PromptGroup, Rollout, Score
from rlhf_plugin_dpo.items import PairItem, Side, make_pair

TIE = 1e-12
"""Scores closer than this are equal."""


def choose_pairs(
    groups: Sequence[PromptGroup], rollouts: Sequence[Rollout], scores: Sequence[Score], margin: float, iteration: int
) -> tuple[list[tuple[PairItem, int, int]], Counter[str]]:
    """The best and the worst completion of every prompt, by score; of equals the first.

    Args:
        groups: prompts, in the order of the rollouts.
        rollouts: ``group_size`` of each prompt.
        scores: one per rollout; missing ones are left out.
        margin: the best must be more than this above the worst.
        iteration: part of the pairs' names.

    Returns:
        (pair, index of the chosen rollout, index of the rejected one) of every prompt that has such a pair, and what
        was dropped by reason: ``pairs_unscored``, ``pairs_tied``, ``pairs_below_margin``, ``pairs_identical``.
    """
    found: list[tuple[PairItem, int, int]] = []
    dropped: Counter[str] = Counter()
    at = 0
    for group in groups:
        span = range(at, at + group.group_size)
        at += group.group_size
        values = {i: float(scores[i].value or 0.0) for i in span if scores[i].ok}
        if len(values) < 2:
            dropped["pairs_unscored"] += 1
            continue
        best, worst = max(values, key=lambda i: values[i]), min(values, key=lambda i: values[i])
        gap = values[best] - values[worst]
        if gap <= TIE:
            dropped["pairs_tied"] += 1
        elif gap <= margin:
            dropped["pairs_below_margin"] += 1
        elif rollouts[best].completion_ids == rollouts[worst].completion_ids:
            dropped["pairs_identical"] += 1
        else:
            pair = make_pair(
                f"{iteration}/{group.prompt.id}",
                group.token_ids,
                rollouts[best].completion_ids,
                rollouts[worst].completion_ids,
            )
            pair = replace(
                pair,
                chosen=replace(pair.chosen, mask=mask_of(rollouts[best])),
                rejected=replace(pair.rejected, mask=mask_of(rollouts[worst])),
            )
            found.append((pair, best, worst))
    return found, dropped


def summed(logprobs_T: Any, side: Side, ld_alpha: float) -> float:
    """Sum of a side's token logprobs ``[T]`` where the policy chose the token, those of its tail by ``ld_alpha``."""
    row = np.asarray(logprobs_T, np.float64)
    row = row if side.mask is None else row * np.asarray(side.mask)
    return float(row[: side.head].sum() + ld_alpha * row[side.head :].sum())


def mask_of(rollout: Rollout) -> tuple[bool, ...] | None:
    """A rollout's mask, None where the policy chose every token."""
    return None if rollout.mask_T is None or bool(rollout.mask_T.all()) else tuple(rollout.mask_T.tolist())
