"""A rollout engine that is gone on one rank ends the run on all of them, at the same point."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rlhf_core.plugins.strategy_protocols import Collectives
from rlhf_core.types.errors import EngineUnavailable


@contextmanager
def engine_on_every_rank(comm: Collectives) -> Iterator[None]:
    """A context that all ranks leave with ``EngineUnavailable``, or none does; all enter it together.

    It contains no exchange between ranks but what comes before the engine is asked. Costs one of a number.

    Args:
        comm: how ranks tell each other.

    Raises:
        EngineUnavailable: this rank's own, or what another rank's says.
    """
    lost: EngineUnavailable | None = None
    try:
        yield
    except EngineUnavailable as error:
        lost = error
    if not comm.max_over_ranks(int(lost is not None)):
        return
    rows = comm.gather_objects(None if lost is None else (lost.what, lost.where, lost.why, lost.fix))
    if lost is None:
        rank, (what, where, why, fix) = next((n, row) for n, row in enumerate(rows) if row is not None)
        lost = EngineUnavailable(f"rank {rank}: {what}", where=where, why=why, fix=fix)
    lost.on_every_rank = True
    raise lost


def sampling_on_every_rank(
    comm: Collectives, whole_weights: Callable[[], AbstractContextManager[None]]
) -> Callable[[], AbstractContextManager[None]]:
    """``whole_weights``, left as :func:`engine_on_every_rank` is."""

    @contextmanager
    def entered() -> Iterator[None]:
        with engine_on_every_rank(comm), whole_weights():
            yield

    return entered
