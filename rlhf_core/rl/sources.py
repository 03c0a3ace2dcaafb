"""Where a step gets its rollout batch from; this one samples and learns in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from rlhf_core.rl.collector import RolloutCollector
from rlhf_core.runs.events import LiveEvents
from rlhf_core.runs.session import RunSession
from rlhf_core.training.rollout_batch import RolloutBatch
from rlhf_core.training.timer import Timer
from rlhf_core.training.weight_sync import WeightSync, sync_weights
from rlhf_core.types.errors import EngineUnavailable


class SourceBatch(NamedTuple):
    """What a step learns from."""

    batch: RolloutBatch
    first_read: bool = True
    """No earlier step has learned from it; what was sampled and scored is counted once."""
    metrics: Mapping[str, float] = {}
    """How stale it is, and what waits; empty for a synchronous run."""


class RolloutSource(Protocol):
    """Gives each step its rollout batch."""

    def next_batch(self, step: int, version: int, timer: Timer) -> SourceBatch:
        """The batch that this step learns from; all ranks call it together, first of all in a step.

        Args:
            step: about to be made.
            version: of the policy now.
            timer: adds to the step's times.

        Raises:
            DeadlineExceeded: it was not there in time.
            ScoreError: too many scores are missing.
            EngineUnavailable: on every rank, if the engine of one is gone.
        """
        ...

    def release_memory(self) -> None:
        """Nothing is sampled until the next step: the engine may give memory back, unless it samples ahead."""
        ...

    def sync_policy(self, version: int) -> None:
        """Let the engine have the policy as it is now, for an evaluation in this thread; all ranks call it together.

        Raises:
            EngineUnavailable: on every rank, if the engine of one is gone.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """This rank's prompts and batches that are still to be trained on."""
        ...

    def load_state_dict(self, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Go on with them.

        Args:
            ranks: the states of all ranks that wrote the checkpoint, in their order.
        """
        ...


class InlineSource:
    """Samples each batch when its step begins, from the policy as it then is.

    Args:
        collector: makes batches.
        weight_sync: brings the policy's weights to the engine.
        session: counts, trace, hooks and ranks.
    """

    def __init__(self, collector: RolloutCollector, weight_sync: WeightSync, session: RunSession) -> None:
        self.collector, self.weight_sync, self.session = collector, weight_sync, session

    def next_batch(self, step: int, version: int, timer: Timer, number: int | None = None) -> SourceBatch:
        """See :meth:`RolloutSource.next_batch`; ``number`` counts batches where several steps learn from one."""
        sync_weights(self.weight_sync, version, self.session.strategy)
        events = LiveEvents(self.session, step)
        try:
            return SourceBatch(self.collector.collect(number or step, version, events, timer))
        except EngineUnavailable as error:
            error.unchanged = error.prompts_put_back  # a step samples before it trains
            raise

    def release_memory(self) -> None:
        """See :meth:`RolloutSource.release_memory`."""
        self.weight_sync.release_memory()

    def sync_policy(self, version: int) -> None:
        """See :meth:`RolloutSource.sync_policy`."""
        sync_weights(self.weight_sync, version, self.session.strategy)

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`RolloutSource.state_dict`."""
        return {"returned": self.collector.prompts.returned_names()}

    def load_state_dict(self, ranks: Sequence[Mapping[str, Any]]) -> None:
        """See :meth:`RolloutSource.load_state_dict`."""
        self.collector.prompts.put_back_named(ranks[0]["returned"])
