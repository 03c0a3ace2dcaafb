"""A rollout batch from the policy as it is now, in a step that samples before it trains."""

from __future__ import annotations

from rlhf_core.errors import EngineUnavailable
from rlhf_core.rollout.weight_sync import WeightSync
from rlhf_core.rollout_batch import RolloutBatch
from rlhf_core.runs.events import EventSink
from rlhf_core.runs.timer import Timer
from rlhf_core.strategy.engine_loss import engine_on_every_rank
from rlhf_core.strategy.protocols import Collectives
from rlhf_core.trainers.online.collector import RolloutCollector


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
