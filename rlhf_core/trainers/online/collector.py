"""Rooms 1 to 3 of one step: prompts, completions, scores. Groups that teach nothing can be replaced by others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from rlhf_core.runs.timer import Timer
from rlhf_core.trainers.common.config import OnlineTrainerConfig
from rlhf_core.trainers.online.events import EventLog, EventSink, LiveEvents
from rlhf_core.trainers.online.report import step_trace
from rlhf_core.trainers.online.rollout_group import RolloutGroup, by_chunks, one_sided
from rlhf_core.types import PromptGroup, Rollout, Score

if TYPE_CHECKING:
    from rlhf_core.runs.session import RunSession
    from rlhf_core.strategy.group import RankGroup
    from rlhf_core.trainers.online.build import OnlineParts

T = TypeVar("T")


@dataclass
class RolloutBatch:
    """What one step trains on: groups of all ranks, and this rank's share of them with completions and scores."""

    groups: list[PromptGroup]
    mine: list[PromptGroup]
    rollouts: list[Rollout]
    scores: list[Score]
    offset: int
    """Completions of the ranks before this one."""
    aside: list[RolloutGroup] = field(default_factory=list)
    """Groups of all ranks that were sampled and scored, and are not trained on."""
    metrics: dict[str, float] = field(default_factory=dict)
    version: int = 0
    """Policy version that sampled it."""
    notes: EventLog = field(default_factory=EventLog)
    """What is to be told when it is first learned from."""
    seconds: dict[str, float] = field(default_factory=dict)
    """What making it took, if it was made beside the learner."""

    @property
    def aside_scores(self) -> list[Score]:
        """Scores of the groups set aside."""
        return [s for scored in self.aside for s in scored.scores]

    @property
    def aside_rollouts(self) -> list[Rollout]:
        """Completions of the groups set aside."""
        return [r for scored in self.aside for r in scored.rollouts]


class RolloutCollector:
    """Draws a step's rollout batch.

    With ``dynamic_sampling``, groups whose scores are all equal are set aside, and as many further prompts are sampled,
    until the batch is full or ``max_rounds`` is reached (Yu et al. 2025, DAPO, eq. 11). Unlike there, no more is
    sampled than is missing, so no useful group is thrown away. Who goes and who stays is decided over the groups of
    all ranks, in the order they were drawn: the number of processes changes nothing.

    Args:
        house: library, studio, court and policy.
        config: the trainer's settings.
        session: counts, trace and hooks.
        channel: how ranks talk where another thread samples, from a whole copy of the policy; None takes the strategy.
    """

    def __init__(
        self, house: OnlineParts, config: OnlineTrainerConfig, session: RunSession, channel: RankGroup | None = None
    ) -> None:
        self.house, self.config, self.session, self.strategy = house, config, session, channel or house.strategy
        self.adaptive = config.adaptive_sampling
        choices = (config.dynamic_sampling, self.adaptive, house.ctx.config.dataset.difficulty)
        self.shares = any(c is not None for c in choices)
        """Whether every rank needs to see every group before the update."""

    def draw(
        self, step: int, timed: Timer, *, tell: EventSink | None = None, version: int | None = None
    ) -> RolloutBatch:
        """Sample and score one rollout batch; all ranks call it together.

        Args:
            step: the batch's number; seeds depend on it and on the round.
            timed: context that adds to the step's times.
            tell: is told what happens; None tells the session, as of this step.
            version: of the policy that samples; None takes the updater's.

        Raises:
            ScoreError: too many scores are missing.
        """
        self.tell: EventSink = tell or LiveEvents(self.session, step)
        self.version = self.house.updater.version if version is None else version
        batch = self._draw(step, timed)
        batch.version = self.version
        return batch

    def _draw(self, step: int, timed: Timer) -> RolloutBatch:
        if not self.shares:
            groups = self.house.library.take(self.config.prompts_per_step)
            return self._batch(groups, self._play(self._share(groups), step, timed))
        kept, aside, rounds = self._refill(step, timed)
        batch = self._batch([s.group for s in kept], self._share(kept))
        batch.aside = aside
        if self.adaptive is not None:
            lacking, sizes = one_sided([*kept, *aside], self.adaptive), [s.group.group_size for s in (*kept, *aside)]
            self.tell.count({"prompts_one_sided": lacking})
            batch.metrics |= {"adaptive/one_sided": float(lacking), "adaptive/group_size": float(np.mean(sizes))}
        if self.config.dynamic_sampling is not None:
            batch.metrics |= self._report(kept, aside, rounds)
        return batch

    def _refill(self, step: int, timed: Timer) -> tuple[list[RolloutGroup], list[RolloutGroup], int]:
        """(Groups to train on, groups set aside, rounds made), the same on every rank."""
        dynamic, size = self.config.dynamic_sampling, self.config.prompts_per_step
        kept: list[RolloutGroup] = []
        aside: list[RolloutGroup] = []
        number = 0
        while len(kept) < size and number < (dynamic.max_rounds if dynamic else 1):
            groups = self.house.library.take(size - len(kept))
            tag = (step, number) if number else step
            found = self._round(groups, tag, timed)
            self.house.library.order.observe([(s.group.prompt.id, s.rate) for s in found if s.rate is not None])
            for scored in found:
                (kept if dynamic is None or scored.teaches else aside).append(scored)
            self.house.court.check([s for scored in (*kept, *aside) for s in scored.scores])
            number += 1
        return kept, aside, number

    def _round(self, groups: Sequence[PromptGroup], tag: object, timed: Timer) -> list[RolloutGroup]:
        """Some groups, each rank playing its share, on every rank."""

        def play(some: Sequence[PromptGroup], start: int) -> list[RolloutGroup]:
            return self._play(some, (tag, "from", start) if start else tag, timed, start)

        mine = self._share(groups)
        own = play(mine, 0) if self.adaptive is None else by_chunks(self.adaptive, mine, play, self._any_rank)
        return [scored for shard in self.strategy.gather_objects(own) for scored in shard]

    def _any_rank(self, found: bool) -> bool:
        return self.strategy.max_over_ranks(int(found)) > 0

    def _play(self, mine: Sequence[PromptGroup], tag: object, timed: Timer, start: int = 0) -> list[RolloutGroup]:
        """This rank's completions and their scores; ``start`` is the number of each prompt's first completion."""
        house = self.house
        with timed("rollout"), self.strategy.gathered(house.module):
            params = self.config.sampling.params()
            rollouts = house.studio.sample(mine, params, self.version, tag=tag) if mine else []
        rollouts = [replace(r, group_index=r.group_index + start) for r in rollouts] if start else rollouts
        if mine:
            self.tell.rollouts(rollouts)
        with timed("reward"):
            scores = house.court.score([g.prompt for g in mine for _ in range(g.group_size)], rollouts)
        if mine:
            self.tell.rewards(rollouts, scores)
        cut = np.cumsum([0, *(g.group_size for g in mine)])
        return [RolloutGroup(g, rollouts[a:b], scores[a:b]) for g, a, b in zip(mine, cut, cut[1:])]

    def _batch(self, groups: list[PromptGroup], own: Sequence[RolloutGroup]) -> RolloutBatch:
        """The batch of some groups, of which ``own`` are this rank's."""
        first = self._bounds(len(groups))[self.strategy.rank]
        return RolloutBatch(
            groups,
            [s.group for s in own],
            [r for s in own for r in s.rollouts],
            [v for s in own for v in s.scores],
            sum(g.group_size for g in groups[:first]),
        )

    def _bounds(self, count: int) -> list[int]:
        """Where each rank's share of ``count`` groups begins; sizes differ by one at most."""
        world = self.strategy.world_size
        return [rank * (count // world) + min(rank, count % world) for rank in range(world + 1)]

    def _share(self, rows: Sequence[T]) -> Sequence[T]:
        """This rank's share, a run of neighbours."""
        bounds, rank = self._bounds(len(rows)), self.strategy.rank
        return rows[bounds[rank] : bounds[rank + 1]]

    def _report(self, kept: Sequence[RolloutGroup], aside: Sequence[RolloutGroup], rounds: int) -> dict[str, float]:
        """Count and trace what was set aside."""
        short = self.config.prompts_per_step - len(kept)
        self.tell.count({"groups_set_aside": len(aside), "groups_not_refilled": short})
        self.tell.trace("refill", set_aside(aside))
        return {"refill/rounds": float(rounds), "refill/set_aside": float(len(aside)), "refill/missing": float(short)}


def set_aside(groups: Sequence[RolloutGroup]) -> list[dict[str, object]]:
    """Trace rows of groups that are not trained on; like those of the others, without tokens."""
    rollouts = [r for s in groups for r in s.rollouts]
    scores = [v for s in groups for v in s.scores]
    rows = step_trace([s.group for s in groups], rollouts, scores, [None] * len(rollouts), {}, 0)
    return [{**row, "event": "set_aside"} for row in rows[:-1]]
