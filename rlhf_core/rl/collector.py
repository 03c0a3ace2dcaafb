"""Prompts, rollouts and scores of one rollout batch; groups without a signal can be replaced by others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from rlhf_core.distributed.engine_loss import engine_on_every_rank
from rlhf_core.distributed.exchange import redistribute
from rlhf_core.plugins.protocols import Collectives
from rlhf_core.rl.adaptive_sampling import count_one_sided, sample_in_chunks
from rlhf_core.rl.config import AdaptiveSampling, DynamicSampling
from rlhf_core.rl.prompts import PromptLoader
from rlhf_core.runs.events import EventSink
from rlhf_core.training.generation import RolloutGenerator
from rlhf_core.training.rewards import RewardManager
from rlhf_core.training.rollout_batch import RolloutBatch, RolloutGroup, batch_of, share_bounds
from rlhf_core.training.timer import Timer
from rlhf_core.training.trace import filtered_rows
from rlhf_core.training.weight_sync import WeightSync
from rlhf_core.types.errors import EngineUnavailable
from rlhf_core.types.rollouts import PromptGroup, SamplingParams

T = TypeVar("T")


@dataclass(frozen=True)
class CollectorSettings:
    """Sizes and rules of a rollout batch."""

    prompts_per_step: int
    sampling: SamplingParams
    dynamic: DynamicSampling | None = None
    adaptive: AdaptiveSampling | None = None
    observe_rates: bool = False
    """The prompt order wants to know how each prompt went."""

    @property
    def shares_groups(self) -> bool:
        """Whether every rank needs to know the scores of every group before the update."""
        return self.dynamic is not None or self.adaptive is not None or self.observe_rates


class RolloutCollector:
    """Makes rollout batches, for whoever learns from them.

    With ``dynamic_sampling``, groups whose scores are all equal are filtered, and as many further prompts are sampled,
    until the batch is full or ``max_rounds`` is reached (Yu et al. 2025, DAPO, eq. 11). Unlike there, no more is
    sampled than is missing, so no useful group is thrown away. Which groups stay is decided over the groups of all
    ranks, in the order they were drawn: the number of processes changes nothing.

    Args:
        prompts: which come next.
        generator: samples completions.
        rewards: scores them.
        comm: how ranks exchange groups.
        settings: sizes and rules.
        whole_weights: context in which the weights that are sampled from are whole on every rank.
    """

    def __init__(
        self,
        prompts: PromptLoader,
        generator: RolloutGenerator,
        rewards: RewardManager,
        comm: Collectives,
        settings: CollectorSettings,
        whole_weights: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.prompts, self.generator, self.rewards = prompts, generator, rewards
        self.comm, self.settings, self.whole_weights = comm, settings, whole_weights

    def collect(self, number: int, version: int, events: EventSink, timer: Timer) -> RolloutBatch:
        """Sample and score one rollout batch; all ranks call it together.

        Args:
            number: the batch's; seeds depend on it and on the round.
            version: of the policy that samples.
            events: receives what happens.
            timer: adds to the step's times.

        Raises:
            ScoreError: too many scores are missing.
            EngineUnavailable: nothing is left to sample with; prompts of which nothing was scored come next.
        """
        call = _Call(version, events, timer)
        if not self.settings.shares_groups:
            groups = self.prompts.take(self.settings.prompts_per_step)
            with self._put_back_if_unsampled(groups):
                return self._batch(groups, self._sample(self._share(groups), number, call), version)
        kept, filtered, rounds = self._fill(number, call)
        share, filtered = self._with_completions(kept, filtered)
        batch = self._batch([g.group for g in kept], share, version)
        metrics = {**self._adaptive_metrics(kept, filtered, events), **self._dynamic(kept, filtered, rounds, events)}
        return replace(batch, filtered=filtered, metrics=metrics)

    def _fill(self, number: int, call: _Call) -> tuple[list[RolloutGroup], list[RolloutGroup], int]:
        """(Groups to train on, filtered groups, rounds made), the same on every rank but for completions, which are
        with the rank that sampled them."""
        dynamic, size = self.settings.dynamic, self.settings.prompts_per_step
        kept: list[RolloutGroup] = []
        filtered: list[RolloutGroup] = []
        rounds = 0
        while len(kept) < size and rounds < (dynamic.max_rounds if dynamic else 1):
            prompts = self.prompts.take(size - len(kept))
            with self._put_back_if_unsampled(prompts, whole_batch=rounds == 0 and self.settings.adaptive is None):
                sampled = self._round(prompts, (number, rounds) if rounds else number, call)
            self.prompts.order.observe([(g.group.prompt.id, g.rate) for g in sampled if g.rate is not None])
            for group in sampled:
                (kept if dynamic is None or group.has_signal else filtered).append(group)
            self.rewards.check([s for group in (*kept, *filtered) for s in group.scores])
            rounds += 1
        return kept, filtered, rounds

    def _round(self, groups: Sequence[PromptGroup], tag: object, call: _Call) -> list[RolloutGroup]:
        """Some groups, of which each rank samples its share and learns the scores of all."""

        def sample(chunk: Sequence[PromptGroup], start: int) -> list[RolloutGroup]:
            return self._sample(chunk, (tag, "from", start) if start else tag, call, start)

        share, adaptive = self._share(groups), self.settings.adaptive
        sampled = sample(share, 0) if adaptive is None else sample_in_chunks(adaptive, share, sample, self._any_rank)
        facts = self.comm.gather_objects([(g.group.group_size, g.scores) for g in sampled])
        rows = zip(groups, (fact for shard in facts for fact in shard), strict=True)
        every = [RolloutGroup(replace(group, group_size=size), (), scores) for group, (size, scores) in rows]
        first = share_bounds(len(groups), self.comm.world_size)[self.comm.rank]
        return [*every[:first], *sampled, *every[first + len(sampled) :]]

    def _with_completions(
        self, kept: Sequence[RolloutGroup], filtered: Sequence[RolloutGroup]
    ) -> tuple[Sequence[RolloutGroup], list[RolloutGroup]]:
        """(This rank's share of the groups to train on, filtered groups); each rank is sent the completions of its
        share, rank 0 those of filtered groups, too, since it traces them."""
        drawn, bounds = [*kept, *filtered], share_bounds(len(kept), self.comm.world_size)
        wanted: list[Sequence[int]] = [range(start, end) for start, end in pairwise(bounds)]
        wanted[0] = [*wanted[0], *range(len(kept), len(drawn))]
        rollouts = redistribute(self.comm, {n: g.rollouts for n, g in enumerate(drawn) if g.rollouts}, wanted)
        groups = [replace(group, rollouts=rollouts.get(n, ())) for n, group in enumerate(drawn)]
        return self._share(groups[: len(kept)]), groups[len(kept) :]

    @contextmanager
    def _put_back_if_unsampled(self, groups: Sequence[PromptGroup], *, whole_batch: bool = True) -> Iterator[None]:
        """Undo the taking of prompts where the engine is gone, unless others of the batch have been scored already."""
        try:
            yield
        except EngineUnavailable as error:
            if whole_batch:
                self.prompts.put_back(groups)
                error.prompts_put_back = True
            raise

    def _any_rank(self, condition: bool) -> bool:
        return self.comm.max_over_ranks(int(condition)) > 0

    def _sample(self, groups: Sequence[PromptGroup], tag: object, call: _Call, start: int = 0) -> list[RolloutGroup]:
        """This rank's completions and their scores; ``start`` is the number of each prompt's first completion."""
        # with several ranks the rest of "rollout" is gathering weights, and waiting for the ranks that come later
        sampled = call.timer("sampling") if self.comm.world_size > 1 else nullcontext()
        with call.timer("rollout"), self.whole_weights(), sampled:
            sampling = self.settings.sampling
            rollouts = self.generator.sample(groups, sampling, call.version, tag=tag) if groups else []
        rollouts = [replace(r, group_index=r.group_index + start) for r in rollouts] if start else rollouts
        if groups:
            call.events.rollouts(rollouts)
        with call.timer("reward"):
            scores = self.rewards.score([g.prompt for g in groups for _ in range(g.group_size)], rollouts)
        if groups:
            call.events.rewards(rollouts, scores)
        ends = np.cumsum([0, *(g.group_size for g in groups)])
        return [RolloutGroup(g, rollouts[a:b], scores[a:b]) for g, a, b in zip(groups, ends, ends[1:])]

    def _batch(self, groups: list[PromptGroup], own: Sequence[RolloutGroup], version: int) -> RolloutBatch:
        """The batch of some groups, of which ``own`` are this rank's."""
        return batch_of(groups, own, version, self.comm.rank, self.comm.world_size)

    def _share(self, rows: Sequence[T]) -> Sequence[T]:
        """This rank's share, a run of neighbours."""
        bounds, rank = share_bounds(len(rows), self.comm.world_size), self.comm.rank
        return rows[bounds[rank] : bounds[rank + 1]]

    def _adaptive_metrics(
        self, kept: Sequence[RolloutGroup], filtered: Sequence[RolloutGroup], events: EventSink
    ) -> dict[str, float]:
        """Group sizes, and how many prompts never got successes and failures."""
        if self.settings.adaptive is None:
            return {}
        sampled = [*kept, *filtered]
        lacking = count_one_sided(sampled, self.settings.adaptive)
        events.count({"prompts_one_sided": lacking})
        size = float(np.mean([g.group.group_size for g in sampled]))
        return {"adaptive/one_sided": float(lacking), "adaptive/group_size": size}

    def _dynamic(
        self, kept: Sequence[RolloutGroup], filtered: Sequence[RolloutGroup], rounds: int, events: EventSink
    ) -> dict[str, float]:
        """Count and trace what was filtered."""
        if self.settings.dynamic is None:
            return {}
        missing = self.settings.prompts_per_step - len(kept)
        events.count({"groups_set_aside": len(filtered), "groups_not_refilled": missing})
        if self.comm.rank == 0:
            events.trace("dynamic_sampling", filtered_rows(filtered))
        figures = {"rounds": rounds, "set_aside": len(filtered), "missing": missing}
        return {f"dynamic_sampling/{name}": float(value) for name, value in figures.items()}


@dataclass(frozen=True)
class _Call:
    """What stays the same over the rounds of one batch."""

    version: int
    events: EventSink
    timer: Timer


def publish(weight_sync: WeightSync, version: int, comm: Collectives) -> None:
    """Bring the policy to what samples, before a step changes anything; all ranks call it together.

    Raises:
        EngineUnavailable: on every rank, if the engine of one takes it nowhere; nothing has changed.
    """
    try:
        with engine_on_every_rank(comm):
            weight_sync.sync(version)
    except EngineUnavailable as error:
        error.unchanged = True
        raise


def collect_now(
    collector: RolloutCollector,
    weight_sync: WeightSync,
    comm: Collectives,
    number: int,
    version: int,
    events: EventSink,
    timer: Timer,
) -> RolloutBatch:
    """:func:`publish`, and make a batch.

    Arguments as of :meth:`RolloutCollector.collect`.
    """
    publish(weight_sync, version, comm)
    try:
        return collector.collect(number, version, events, timer)
    except EngineUnavailable as error:
        error.unchanged = error.prompts_put_back  # a step samples before it trains
        raise
