"""Rollout batches of a step: which prompts come next, their completions and scores; sampling and learning in turn."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from rlhf_core.data.order import PromptOrder
from rlhf_core.plugins.strategy_protocols import Collectives
from rlhf_core.rl.settings import AdaptiveSampling, DynamicSampling
from rlhf_core.runs.session import Emit, RunSession, emit
from rlhf_core.training.generation import RolloutGenerator
from rlhf_core.training.rewards import RewardManager
from rlhf_core.training.rollout_batch import RolloutBatch, batch_of, cut_groups, share_bounds
from rlhf_core.training.trace import Timer
from rlhf_core.training.weight_sync import WeightSync, sync_weights
from rlhf_core.types.errors import EngineUnavailable
from rlhf_core.types.rollouts import Prompt, PromptGroup, SamplingParams


class PromptLoader:
    """Prompts in the order of training; what was taken and not trained on comes first."""

    def __init__(self, order: PromptOrder, encode: Callable[[Prompt], tuple[int, ...]], group_size: int) -> None:
        self.order, self.encode, self.group_size = order, encode, group_size
        self.returned: list[Prompt] = []
        """Prompts that were taken and not trained on; they come next."""

    def take(self, count: int) -> list[PromptGroup]:
        """The next prompts, all different; the position is part of the checkpoint."""
        first: dict[str, Prompt] = {}
        rest: list[Prompt] = []
        for prompt in self.returned:
            if len(first) < count and prompt.id not in first:
                first[prompt.id] = prompt
            else:
                rest.append(prompt)
        chosen, self.returned = list(first.values()), rest
        return self.groups([*chosen, *self.order.take(count - len(chosen), chosen)], self.group_size)

    def put_back(self, groups: Sequence[PromptGroup]) -> None:
        """Let these prompts come next, before any other, in this order."""
        self.returned = [*(g.prompt for g in groups), *self.returned]

    @contextmanager
    def put_back_if_unsampled(
        self, groups: Sequence[PromptGroup], *, whole_batch: bool = True
    ) -> Generator[None, None, None]:
        """Undo the taking of prompts where the engine is gone, unless others of the batch have been scored already."""
        try:
            yield
        except EngineUnavailable as error:
            if whole_batch:
                self.put_back(groups)
                error.prompts_put_back = True
            raise

    def groups(self, prompts: Sequence[Prompt], group_size: int) -> list[PromptGroup]:
        """Tokenize prompts."""
        return [PromptGroup(p, self.encode(p), group_size) for p in prompts]

    def by_name(self) -> dict[tuple[str, str], Prompt]:
        """(Source, id) -> prompt, of every prompt of the run."""
        return {(source, p.id): p for source, walk in self.order.walks.items() for p in walk.prompts}

    def returned_names(self) -> list[list[str]]:
        """[Source, id] of each prompt that was put back."""
        return [[prompt.source, prompt.id] for prompt in self.returned]

    def put_back_named(self, names: Sequence[Sequence[str]]) -> None:
        """Let these prompts come next, and no others that were put back."""
        prompts = self.by_name()
        self.returned = [prompts[source, prompt_id] for source, prompt_id in names]


T = TypeVar("T")


@dataclass(frozen=True)
class CollectorSettings:
    """Sizes and rules of a rollout batch."""

    prompts_per_step: int
    sampling: SamplingParams
    dynamic: DynamicSampling | None = None
    adaptive: AdaptiveSampling | None = None


@dataclass(eq=False)
class RolloutCollector:
    """Makes rollout batches of the next prompts, as many completions of each as ``group_size``."""

    prompts: PromptLoader
    generator: RolloutGenerator
    rewards: RewardManager
    comm: Collectives
    settings: CollectorSettings
    whole_weights: Callable[[], AbstractContextManager[None]]

    def collect(self, number: int, version: int, emit: Emit, timer: Timer) -> RolloutBatch:
        """Sample and score one rollout batch; all ranks call it together."""
        groups = self.prompts.take(self.settings.prompts_per_step)
        own = self.own_share(groups)
        with self.prompts.put_back_if_unsampled(groups):
            with self.sampling(timer):
                rollouts = self.generator.sample(own, self.settings.sampling, version, tag=number)
            emit("rollouts", rollouts)
            with timer("reward"):
                scores = self.rewards.score([g.prompt for g in own for _ in range(g.group_size)], rollouts)
            emit("rewards", rollouts, scores)
        return batch_of(groups, cut_groups(own, rollouts, scores), version)

    @contextmanager
    def sampling(self, timer: Timer) -> Generator[None, None, None]:
        """Context of what samples; all ranks enter it together.

        With several ranks the rest of ``rollout`` is gathering weights, and waiting for the ranks that come later.
        """
        sampled = timer("sampling") if self.comm.world_size > 1 else nullcontext()
        with timer("rollout"), self.whole_weights(), sampled:
            yield

    def own_share(self, rows: Sequence[T]) -> Sequence[T]:
        """This rank's share, a run of neighbours."""
        bounds, rank = share_bounds(len(rows), self.comm.world_size), self.comm.rank
        return rows[bounds[rank] : bounds[rank + 1]]


class SourceBatch(NamedTuple):
    """What a step learns from."""

    batch: RolloutBatch
    first_read: bool = True
    """No earlier step has learned from it; what was sampled and scored is counted once."""
    metrics: Mapping[str, float] = {}


class InlineSource:
    """Gives each step its rollout batch: sampled when the step begins, from the policy as it then is.

    Raises ``EngineUnavailable`` on every rank if the engine of one is gone.
    """

    def __init__(self, collector: RolloutCollector, weight_sync: WeightSync, session: RunSession) -> None:
        self.collector, self.weight_sync, self.session = collector, weight_sync, session

    def next_batch(self, step: int, version: int, timer: Timer, number: int | None = None) -> SourceBatch:
        """The batch that this step learns from; all ranks call it together, first of all in a step.

        ``number`` counts batches where several steps learn from one.
        """
        sync_weights(self.weight_sync, version, self.session.strategy)
        try:
            batch = self.collector.collect(number or step, version, partial(emit, self.session, step), timer)
            return SourceBatch(batch, metrics=getattr(self.weight_sync.engine, "sync_metrics", dict)())
        except EngineUnavailable as error:
            error.unchanged = error.prompts_put_back  # a step samples before it trains
            raise

    def release_memory(self) -> None:
        """Nothing is sampled until the next step: the engine may give memory back, unless it samples ahead."""
        self.weight_sync.release_memory()

    def sync_policy(self, version: int) -> None:
        """Let the engine have the policy as it is now, for an evaluation in this thread; all ranks call it together."""
        sync_weights(self.weight_sync, version, self.session.strategy)

    def state_dict(self) -> dict[str, Any]:
        """This rank's prompts and batches that are still to be trained on."""
        return {"returned": self.collector.prompts.returned_names()}

    def load_state_dict(self, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Go on with the states of all ranks that wrote the checkpoint."""
        self.collector.prompts.put_back_named(ranks[0]["returned"])
