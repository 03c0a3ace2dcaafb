"""Rollout batches whose groups depend on scores: groups without a signal are replaced, group sizes vary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from rlhf_core.data import PromptGroup
from rlhf_core.distributed.group import redistribute
from rlhf_core.rl.settings import AdaptiveSampling
from rlhf_core.rl.sources import RolloutCollector
from rlhf_core.runs.session import Emit
from rlhf_core.training.functional import RELATIVE_FLOOR
from rlhf_core.training.rollout_batch import RolloutBatch, RolloutGroup, batch_of, cut_groups, share_bounds
from rlhf_core.training.trace import Timer, prompt_rows

SampleAndScore = Callable[[Sequence[PromptGroup], int], list[RolloutGroup]]
"""Samples and scores some groups, given the number of each prompt's first completion."""


def one_sided(group: RolloutGroup, settings: AdaptiveSampling) -> bool:
    """Whether a group has too few scores above the threshold, or too few that are not."""
    above = [float(s.value) > settings.threshold for s in group.scores if s.ok and s.value is not None]
    return sum(above) < settings.k_success or len(above) - sum(above) < settings.k_failure


def has_signal(group: RolloutGroup) -> bool:
    """Whether two of a group's scores differ by more than rounding."""
    values = group.values
    return len(values) > 1 and bool(values.std(ddof=1) > RELATIVE_FLOOR * float(np.abs(values).max()))


Sample = Callable[[Sequence[PromptGroup], object, int], list[RolloutGroup]]
"""(Groups of this rank, tag of their seeds, number of each prompt's first completion) -> completions and scores."""


class DynamicCollector(RolloutCollector):
    """Makes rollout batches of which every rank knows all scores before the update.

    With ``dynamic_sampling``, groups whose scores are all equal are set aside, and as many further prompts are sampled,
    until the batch is full or ``max_rounds`` is reached (Yu et al. 2025, DAPO, eq. 11). Unlike there, no more is
    sampled than is missing, so no useful group is thrown away. Which groups stay is decided over the groups of all
    ranks, in the order they were drawn: the number of processes changes nothing. With ``adaptive_sampling`` a prompt is
    sampled until it has successes and failures.
    """

    traced: Callable[[int, Sequence[int]], int] | None = None
    """(Number of a batch, sizes of groups that were set aside) -> how many of these are traced; None: all."""

    def collect(self, number: int, version: int, emit: Emit, timer: Timer) -> RolloutBatch:
        """See :meth:`RolloutCollector.collect`; seeds depend on the round, too."""
        trained, set_aside, rounds = self._fill(number, partial(self._sample, version, emit, timer))
        own, set_aside = self._with_completions(trained, set_aside)
        batch = batch_of([g.group for g in trained], own, version)
        metrics = self._adaptive_metrics([*trained, *set_aside], emit)
        metrics |= self._dynamic_metrics(number, len(trained), set_aside, rounds, emit)
        return replace(batch, set_aside=set_aside, metrics=metrics)

    def _fill(self, number: int, sample: Sample) -> tuple[list[RolloutGroup], list[RolloutGroup], int]:
        """(Groups to train on, set-aside groups, rounds made), the same on every rank but for completions, which are
        with the rank that sampled them."""
        dynamic, size = self.settings.dynamic, self.settings.prompts_per_step
        trained: list[RolloutGroup] = []
        set_aside: list[RolloutGroup] = []
        rounds = 0
        while len(trained) < size and rounds < (dynamic.max_rounds if dynamic else 1):
            prompts = self.prompts.take(size - len(trained))
            whole_batch = rounds == 0 and self.settings.adaptive is None
            with self.prompts.put_back_if_unsampled(prompts, whole_batch=whole_batch):
                sampled = self._round(prompts, (number, rounds) if rounds else number, sample)
            self.prompts.order.observe([(g.group.prompt.id, g.rate) for g in sampled if g.rate is not None])
            for group in sampled:
                (trained if dynamic is None or has_signal(group) else set_aside).append(group)
            self.rewards.check([s for group in (*trained, *set_aside) for s in group.scores])
            rounds += 1
        return trained, set_aside, rounds

    def _round(self, groups: Sequence[PromptGroup], tag: object, sample: Sample) -> list[RolloutGroup]:
        """Some groups, of which each rank samples its share and learns the scores of all."""

        def chunk(part: Sequence[PromptGroup], start: int) -> list[RolloutGroup]:
            return sample(part, (tag, "from", start) if start else tag, start)

        own, adaptive = self.own_share(groups), self.settings.adaptive
        sampled = chunk(own, 0) if adaptive is None else self._in_chunks(adaptive, own, chunk)
        scored = self.comm.gather_objects([(g.group.group_size, g.scores) for g in sampled])
        rows = zip(groups, (row for rank in scored for row in rank), strict=True)
        without_completions = [
            RolloutGroup(replace(group, group_size=size), (), scores) for group, (size, scores) in rows
        ]
        first = share_bounds(len(groups), self.comm.world_size)[self.comm.rank]
        return [*without_completions[:first], *sampled, *without_completions[first + len(sampled) :]]

    def _sample(
        self, version: int, emit: Emit, timer: Timer, groups: Sequence[PromptGroup], tag: object, start: int
    ) -> list[RolloutGroup]:
        """This rank's completions and their scores; ``start`` is the number of each prompt's first completion."""
        with self.sampling(timer):
            rollouts = self.generator.sample(groups, self.settings.sampling, version, tag=tag) if groups else []
        rollouts = [replace(r, group_index=r.group_index + start) for r in rollouts] if start else rollouts
        if groups:
            emit("rollouts", rollouts)
        with timer("reward"):
            scores = self.rewards.score([g.prompt for g in groups for _ in range(g.group_size)], rollouts)
        if groups:
            emit("rewards", rollouts, scores)
        return cut_groups(groups, rollouts, scores)

    def _in_chunks(
        self, settings: AdaptiveSampling, groups: Sequence[PromptGroup], sample: SampleAndScore
    ) -> list[RolloutGroup]:
        """Sample each prompt chunk by chunk until it has enough on both sides of the threshold, or
        ``max_completions``."""
        sampled = [RolloutGroup(group, [], []) for group in groups]
        for start in range(0, settings.max_completions, settings.chunk_size):
            unfinished = [n for n, group in enumerate(sampled) if one_sided(group, settings)]
            if not self.comm.max_over_ranks(len(unfinished)):
                break
            size = min(settings.chunk_size, settings.max_completions - start)
            chunks = sample([replace(sampled[n].group, group_size=size) for n in unfinished], start)
            for n, chunk in zip(unfinished, chunks):
                rollouts, scores = [*sampled[n].rollouts, *chunk.rollouts], [*sampled[n].scores, *chunk.scores]
                sampled[n] = replace(sampled[n], rollouts=rollouts, scores=scores)
        return [replace(g, group=replace(g.group, group_size=len(g.rollouts))) for g in sampled]

    def _with_completions(
        self, trained: Sequence[RolloutGroup], set_aside: Sequence[RolloutGroup]
    ) -> tuple[Sequence[RolloutGroup], list[RolloutGroup]]:
        """(This rank's share of the groups to train on, set-aside groups); each rank is sent the completions of its
        share, rank 0 those of set-aside groups, too, since it traces them."""
        drawn, bounds = [*trained, *set_aside], share_bounds(len(trained), self.comm.world_size)
        needed: list[Sequence[int]] = [range(start, end) for start, end in pairwise(bounds)]
        needed[0] = [*needed[0], *range(len(trained), len(drawn))]
        rollouts = redistribute(self.comm, {n: g.rollouts for n, g in enumerate(drawn) if g.rollouts}, needed)
        groups = [replace(group, rollouts=rollouts.get(n, ())) for n, group in enumerate(drawn)]
        return self.own_share(groups[: len(trained)]), groups[len(trained) :]

    def _adaptive_metrics(self, sampled: Sequence[RolloutGroup], emit: Emit) -> dict[str, float]:
        """Group sizes, and how many prompts never got successes and failures."""
        adaptive = self.settings.adaptive
        if adaptive is None:
            return {}
        lacking = sum(one_sided(group, adaptive) for group in sampled)
        emit("count", {"prompts_one_sided": lacking})
        size = float(np.mean([g.group.group_size for g in sampled]))
        return {"adaptive/one_sided": float(lacking), "adaptive/group_size": size}

    def _dynamic_metrics(
        self, number: int, trained: int, set_aside: Sequence[RolloutGroup], rounds: int, emit: Emit
    ) -> dict[str, float]:
        """Count and trace what was set aside."""
        if self.settings.dynamic is None:
            return {}
        missing = self.settings.prompts_per_step - trained
        emit("count", {"groups_set_aside": len(set_aside), "groups_not_refilled": missing})
        sizes = [g.group.group_size for g in set_aside]
        traced = len(sizes) if self.traced is None else self.traced(number, sizes)
        emit("trace", "dynamic_sampling", set_aside_rows(set_aside[:traced]))
        figures = {"rounds": rounds, "set_aside": len(set_aside), "missing": missing}
        return {f"dynamic_sampling/{name}": float(value) for name, value in figures.items()}


def set_aside_rows(groups: Sequence[RolloutGroup]) -> list[dict[str, Any]]:
    """Rows of groups that are not trained on, without tokens."""
    rollouts = [r for g in groups for r in g.rollouts]
    scores = [s for g in groups for s in g.scores]
    rows = prompt_rows([g.group for g in groups], rollouts, scores, [None] * len(rollouts), 0)
    return [{**row, "event": "set_aside"} for row in rows]
