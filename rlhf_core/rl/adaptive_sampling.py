"""Groups of varying size: a prompt is sampled in chunks until it has successes and failures to compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rlhf_core.rl.config import AdaptiveSampling
from rlhf_core.training.rollout_batch import RolloutGroup
from rlhf_core.types.rollouts import PromptGroup

SampleAndScore = Callable[[Sequence[PromptGroup], int], list[RolloutGroup]]
"""Samples and scores some groups, given the number of each prompt's first completion."""


def sample_in_chunks(
    settings: AdaptiveSampling,
    groups: Sequence[PromptGroup],
    sample: SampleAndScore,
    any_rank: Callable[[bool], bool],
) -> list[RolloutGroup]:
    """Sample each prompt chunk by chunk until it has enough on both sides of the threshold, or ``max_completions``.

    Args:
        settings: how many are enough.
        groups: this rank's prompts; their ``group_size`` is not looked at.
        sample: all ranks call it together, some perhaps without groups.
        any_rank: whether something holds on any rank.

    Returns:
        One row per group, in order, with the ``group_size`` that it came to.
    """
    sampled = [RolloutGroup(group, [], []) for group in groups]
    for start in range(0, settings.max_completions, settings.chunk_size):
        unfinished = [n for n, group in enumerate(sampled) if one_sided(group, settings)]
        if not any_rank(bool(unfinished)):
            break
        size = min(settings.chunk_size, settings.max_completions - start)
        chunks = sample([replace(sampled[n].group, group_size=size) for n in unfinished], start)
        for n, chunk in zip(unfinished, chunks):
            sampled[n] = _joined(sampled[n], chunk)
    return [replace(g, group=replace(g.group, group_size=len(g.rollouts))) for g in sampled]


def _joined(first: RolloutGroup, second: RolloutGroup) -> RolloutGroup:
    return replace(first, rollouts=[*first.rollouts, *second.rollouts], scores=[*first.scores, *second.scores])


def one_sided(group: RolloutGroup, settings: AdaptiveSampling) -> bool:
    """Whether a group has too few scores above the threshold, or too few that are not."""
    above = [float(s.value) > settings.threshold for s in group.scores if s.ok and s.value is not None]
    return sum(above) < settings.k_success or len(above) - sum(above) < settings.k_failure


def count_one_sided(groups: Sequence[RolloutGroup], settings: AdaptiveSampling) -> int:
    """How many groups reached ``max_completions`` without enough of both."""
    return sum(one_sided(group, settings) for group in groups)
