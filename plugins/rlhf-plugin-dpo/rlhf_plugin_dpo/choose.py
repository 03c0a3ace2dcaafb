"""Preference pairs from scored rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlhf_core.config import PluginError
from rlhf_core.data import PromptGroup
from rlhf_core.rewards import Score
from rlhf_core.rollouts import Rollout
from rlhf_plugin_dpo.items import PairItem, Side, make_pair

TIE = 1e-12
"""Scores closer than this are equal."""


def choose_pairs(
    groups: Sequence[PromptGroup], rollouts: Sequence[Rollout], scores: Sequence[Score], margin: float, iteration: int
) -> tuple[list[tuple[PairItem, int, int]], Counter[str]]:
    """(pair, chosen index, rejected index) of every prompt whose best and worst scores are more than ``margin`` apart,
    and how many have none, by reason (``pairs_unscored``, ``pairs_tied``, ``pairs_below_margin``,
    ``pairs_identical``)."""
    pairs: list[tuple[PairItem, int, int]] = []
    dropped: Counter[str] = Counter()
    first = 0
    for group in groups:
        indices = range(first, first + group.group_size)
        first += group.group_size
        values = {i: float(scores[i].value or 0.0) for i in indices if scores[i].ok}
        if len(values) < 2:
            dropped["pairs_unscored"] += 1
            continue
        best, worst = max(values, key=lambda i: values[i]), min(values, key=lambda i: values[i])
        if reason := no_pair(values[best] - values[worst], margin, rollouts[best], rollouts[worst]):
            dropped[reason] += 1
        else:
            name = f"{iteration}/{group.prompt.id}"
            pairs.append((pair_of(name, group, rollouts[best], rollouts[worst]), best, worst))
    return pairs, dropped


def no_pair(gap: float, margin: float, best: Rollout, worst: Rollout) -> str:
    """Why two completions, ``gap`` apart in score, make no pair; "" if they do."""
    if gap <= TIE:
        return "pairs_tied"
    if gap <= margin:
        return "pairs_below_margin"
    return "pairs_identical" if best.completion_ids == worst.completion_ids else ""


def pair_of(name: str, group: PromptGroup, best: Rollout, worst: Rollout) -> PairItem:
    for rollout in (best, worst):
        if any(segment.prompt_ids for segment in rollout.segments[1:]):
            raise PluginError(
                f"a pair of {rollout.prompt_id} cannot be made: the agent rewrote its context in mid-episode",
                why="losses on pairs read each side as one sequence",
                fix="choose a chat template that keeps earlier turns as they are, or an algorithm without pairs (grpo)",
            )
    prompts = {(r.segments[0].prompt_ids if r.segments else None) or group.token_ids for r in (best, worst)}
    if len(prompts) > 1:
        raise PluginError(
            f"a pair of {group.prompt.id} cannot be made: the agent began its two episodes in different contexts",
            why="a pair has one prompt",
            fix="an agent that begins in the same way each time, or an algorithm without pairs (grpo)",
        )
    pair = make_pair(name, prompts.pop(), best.completion_ids, worst.completion_ids)
    return replace(
        pair,
        chosen=replace(pair.chosen, mask=mask_of(best)),
        rejected=replace(pair.rejected, mask=mask_of(worst)),
    )


def summed(logprobs_T: Any, side: Side, ld_alpha: float) -> float:
    """Sum of a side's token logprobs ``[T]`` where the policy chose the token, those of its tail by ``ld_alpha``."""
    counted_T = np.asarray(logprobs_T, np.float64)
    if side.mask is not None:
        counted_T = counted_T * np.asarray(side.mask)
    return float(counted_T[: side.head].sum() + ld_alpha * counted_T[side.head :].sum())


def mask_of(rollout: Rollout) -> tuple[bool, ...] | None:
    """A rollout's mask, None where the policy chose every token."""
    return None if rollout.mask_T is None or bool(rollout.mask_T.all()) else tuple(rollout.mask_T.tolist())
