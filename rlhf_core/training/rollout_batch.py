"""What a step learns from: groups of completions with their scores, and which rank has which of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rlhf_core.runs.events import Event
from rlhf_core.training.functional.groups import rounding
from rlhf_core.types.rollouts import PromptGroup, Rollout, Score


@dataclass(frozen=True)
class RolloutGroup:
    """One prompt's completions and their scores."""

    group: PromptGroup
    rollouts: Sequence[Rollout]
    """Empty on a rank that has no use for them."""
    scores: Sequence[Score]

    @property
    def has_signal(self) -> bool:
        """Whether two of the scores differ by more than rounding."""
        values = self.values
        return len(values) > 1 and bool(values.std(ddof=1) > rounding(float(np.abs(values).max())))

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """The scores that exist."""
        return np.array([s.value for s in self.scores if s.ok], np.float64)

    @property
    def rate(self) -> float | None:
        """Mean of the scores that exist; None if none does."""
        return float(self.values.mean()) if len(self.values) else None


@dataclass(frozen=True)
class RolloutBatch:
    """Groups of all ranks, and this rank's share of them with completions and scores."""

    groups: Sequence[PromptGroup]
    own_groups: Sequence[PromptGroup]
    """This rank's."""
    rollouts: Sequence[Rollout]
    """This rank's, group by group."""
    scores: Sequence[Score]
    """Of :attr:`rollouts`."""
    offset: int
    """Completions of the ranks before this one."""
    set_aside: Sequence[RolloutGroup] = ()
    """Groups of all ranks that were sampled and scored, and are not trained on; rank 0 has their completions."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    version: int = 0
    """Policy version that sampled it."""
    events: Sequence[Event] = ()
    """Kept until it is first learned from, if it was made ahead."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """What making it took, if it was made ahead."""

    @property
    def set_aside_scores(self) -> list[Score]:
        """Scores of the set-aside groups."""
        return [s for group in self.set_aside for s in group.scores]

    @property
    def set_aside_rollouts(self) -> list[Rollout]:
        """Completions of the set-aside groups, on rank 0."""
        return [r for group in self.set_aside for r in group.rollouts]

    @property
    def group_ids(self) -> list[int]:
        """Number of the group of each completion, over all ranks."""
        return [i for i, g in enumerate(self.groups) for _ in range(g.group_size)]


def share_bounds(count: int, world_size: int) -> list[int]:
    """Where each rank's share of ``count`` groups begins, and the end; sizes differ by one at most."""
    return [rank * (count // world_size) + min(rank, count % world_size) for rank in range(world_size + 1)]


def cut_groups(
    groups: Sequence[PromptGroup], rollouts: Sequence[Rollout], scores: Sequence[Score]
) -> list[RolloutGroup]:
    """Completions and scores that lie group by group, cut into their groups."""
    ends = np.cumsum([0, *(g.group_size for g in groups)])
    return [RolloutGroup(g, rollouts[a:b], scores[a:b]) for g, a, b in zip(groups, ends, ends[1:])]


def batch_of(
    groups: Sequence[PromptGroup], own: Sequence[RolloutGroup], version: int, rank: int, world_size: int
) -> RolloutBatch:
    """The batch of some groups, of which ``own`` are this rank's."""
    first = share_bounds(len(groups), world_size)[rank]
    return RolloutBatch(
        groups=groups,
        own_groups=[g.group for g in own],
        rollouts=[r for g in own for r in g.rollouts],
        scores=[s for g in own for s in g.scores],
        offset=sum(g.group_size for g in groups[:first]),
        version=version,
    )
