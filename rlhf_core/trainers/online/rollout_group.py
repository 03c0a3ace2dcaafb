"""Groups of varying size: a prompt is sampled in chunks until it has successes and failures to compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rlhf_core.functional.groups import spread
from rlhf_core.trainers.common.config import AdaptiveSampling
from rlhf_core.types import PromptGroup, Rollout, Score


class RolloutGroup(NamedTuple):
    """One prompt's completions and their scores."""

    group: PromptGroup
    rollouts: list[Rollout]
    scores: list[Score]

    @property
    def teaches(self) -> bool:
        """Whether two of the scores differ by more than rounding."""
        return spread(self.values) > 0

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """The scores that exist."""
        return np.array([s.value for s in self.scores if s.ok], np.float64)

    @property
    def rate(self) -> float | None:
        """Mean of the scores that exist; None if none does."""
        return float(self.values.mean()) if len(self.values) else None


Play = Callable[[Sequence[PromptGroup], int], list[RolloutGroup]]
"""Samples and scores some groups, given the number of each prompt's first completion."""


def by_chunks(
    settings: AdaptiveSampling, groups: Sequence[PromptGroup], play: Play, any_rank: Callable[[bool], bool]
) -> list[RolloutGroup]:
    """Sample each prompt chunk by chunk until it has enough on both sides of the threshold, or ``max_completions``.

    Args:
        settings: how many are enough.
        groups: this rank's prompts; their ``group_size`` is not looked at.
        play: all ranks call it together, some perhaps without groups.
        any_rank: whether something holds on any rank.

    Returns:
        One row per group, in order, with the ``group_size`` that it came to.
    """
    found = [RolloutGroup(g, [], []) for g in groups]
    for start in range(0, settings.max_completions, settings.chunk_size):
        open_ = [s for s in found if missing_side(s, settings)]
        if not any_rank(bool(open_)):
            break
        size = min(settings.chunk_size, settings.max_completions - start)
        for scored, more in zip(open_, play([replace(s.group, group_size=size) for s in open_], start)):
            scored.rollouts.extend(more.rollouts)
            scored.scores.extend(more.scores)
    return [s._replace(group=replace(s.group, group_size=len(s.rollouts))) for s in found]


def missing_side(scored: RolloutGroup, settings: AdaptiveSampling) -> bool:
    """Whether a group has too few scores above the threshold, or too few that are not."""
    good = [float(s.value) > settings.threshold for s in scored.scores if s.ok and s.value is not None]
    return sum(good) < settings.k_success or len(good) - sum(good) < settings.k_failure


def one_sided(groups: Sequence[RolloutGroup], settings: AdaptiveSampling) -> int:
    """How many groups reached ``max_completions`` without enough of both."""
    return sum(missing_side(s, settings) for s in groups)
