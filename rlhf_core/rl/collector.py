"""Prompts, rollouts and scores of one rollout batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

from rlhf_core.plugins.strategy_protocols import Collectives
from rlhf_core.rl.config import AdaptiveSampling, DynamicSampling
from rlhf_core.rl.prompts import PromptLoader
from rlhf_core.runs.events import EventSink
from rlhf_core.training.generation import RolloutGenerator
from rlhf_core.training.rewards import RewardManager
from rlhf_core.training.rollout_batch import RolloutBatch, RolloutGroup, batch_of, cut_groups, share_bounds
from rlhf_core.training.timer import Timer
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
    """Makes rollout batches of the next prompts, as many completions of each as ``group_size``.

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
            number: the batch's; seeds depend on it.
            version: of the policy that samples.
            events: receives what happens.
            timer: adds to the step's times.

        Raises:
            ScoreError: too many scores are missing.
            EngineUnavailable: nothing is left to sample with; prompts of which nothing was scored come next.
        """
        groups = self.prompts.take(self.settings.prompts_per_step)
        own = self.own_share(groups)
        with self.prompts.put_back_if_unsampled(groups):
            with self.sampling(timer):
                rollouts = self.generator.sample(own, self.settings.sampling, version, tag=number)
            events.rollouts(rollouts)
            with timer("reward"):
                scores = self.rewards.score([g.prompt for g in own for _ in range(g.group_size)], rollouts)
            events.rewards(rollouts, scores)
        return self.batch(groups, cut_groups(own, rollouts, scores), version)

    @contextmanager
    def sampling(self, timer: Timer) -> Iterator[None]:
        """Context of what samples; all ranks enter it together.

        With several ranks the rest of ``rollout`` is gathering weights, and waiting for the ranks that come later.
        """
        sampled = timer("sampling") if self.comm.world_size > 1 else nullcontext()
        with timer("rollout"), self.whole_weights(), sampled:
            yield

    def batch(self, groups: Sequence[PromptGroup], own: Sequence[RolloutGroup], version: int) -> RolloutBatch:
        """The batch of some groups, of which ``own`` are this rank's."""
        return batch_of(groups, own, version, self.comm.rank, self.comm.world_size)

    def own_share(self, rows: Sequence[T]) -> Sequence[T]:
        """This rank's share, a run of neighbours."""
        bounds, rank = share_bounds(len(rows), self.comm.world_size), self.comm.rank
        return rows[bounds[rank] : bounds[rank + 1]]
