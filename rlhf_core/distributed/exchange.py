"""Values between ranks, so that each is sent what it needs and no more."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, TypeVar

from rlhf_core.plugins.strategy_protocols import Collectives
from rlhf_core.types.errors import EngineUnavailable, OtherRankFailed

T = TypeVar("T")


class RankZeroSection:
    """What rank 0 computes for all ranks inside of :meth:`RankZero.section`."""

    values: Sequence[Any] = ()
    received: Any = None
    """This rank's value, after the section."""

    def __init__(self, ranks: Collectives) -> None:
        self.world_size, self.active = ranks.world_size, ranks.rank == 0

    def for_each(self, values: Sequence[Any]) -> None:
        """Send each rank its own value."""
        self.values = values

    def for_all(self, value: Any) -> None:
        """Send every rank the same value."""
        self.values = [value] * self.world_size


class RankZero:
    """Brings every rank's values to rank 0, and to every rank what rank 0 makes of them.

    Args:
        ranks: all; they make the same calls in the same order.

    Example:
        shards = rank_zero.gather(scores)
        with rank_zero.section() as section:
            if section.active:
                section.for_all(mean_of(shards))
        mean = section.received
    """

    def __init__(self, ranks: Collectives) -> None:
        self.ranks = ranks

    def gather(self, value: T) -> list[T]:
        """Every rank's value in rank order, on rank 0; nothing on the others."""
        received = self.ranks.exchange_objects([value if to == 0 else None for to in range(self.ranks.world_size)])
        return received if self.ranks.rank == 0 else []

    @contextmanager
    def section(self) -> Iterator[RankZeroSection]:
        """A section in which rank 0 alone works, without collective operations, and names what it sends.

        Raises:
            OtherRankFailed: on the other ranks, where rank 0 raised.
        """
        ranks, section = self.ranks, RankZeroSection(self.ranks)
        outgoing: Sequence[Any] = [None] * ranks.world_size
        try:
            yield section
            if section.active:  # what cannot be sent fails here, where others can be told
                outgoing = [section.values[0], *_pickled(section.values[1:])]
        except BaseException as error:
            if section.active:
                failed = pickle.dumps(Failed(f"{type(error).__name__}: {error}"))
                ranks.exchange_objects([None, *[failed] * (ranks.world_size - 1)])
            raise
        sent = ranks.exchange_objects(outgoing)[0]
        section.received = sent if section.active else pickle.loads(sent)
        if isinstance(section.received, Failed):
            raise OtherRankFailed(f"rank 0 failed: {section.received.error}")


def _pickled(values: Sequence[Any]) -> list[bytes]:
    """Each value, and what is for several ranks once."""
    distinct = {id(value): value for value in values}
    pickled = {key: pickle.dumps(value) for key, value in distinct.items()}
    return [pickled[id(value)] for value in values]


class Failed(NamedTuple):
    """What rank 0 sends instead of a value that it could not compute."""

    error: str


def redistribute(ranks: Collectives, held: Mapping[int, T], needed: Sequence[Collection[int]]) -> dict[int, T]:
    """The values that this rank needs, from the ranks that hold them; all ranks call it together.

    Args:
        ranks: all.
        held: index -> value, of this rank; one rank at most holds an index.
        needed: indices that each rank needs, the same on every rank.

    Returns:
        Index -> value, of the needed indices that some rank holds.
    """
    outgoing = [{index: held[index] for index in indices if index in held} for indices in needed]
    return {index: value for part in ranks.exchange_objects(outgoing) for index, value in part.items()}


def borrow_dummy_sample(ranks: Collectives, value: T | None, present: Sequence[bool]) -> T | None:
    """This rank's value, or that of the first rank that has one; None where none has.

    Args:
        ranks: all.
        value: None where this rank has none.
        present: which ranks have one, the same on every rank. Nothing is exchanged where all have, or none.
    """
    if all(present) or not any(present):
        return value
    lender = present.index(True)
    lends = ranks.rank == lender
    received = ranks.exchange_objects([value if lends and not has else None for has in present])
    return value if present[ranks.rank] else received[lender]


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
    """A context that enters :func:`engine_on_every_rank`, and ``whole_weights`` inside it."""

    @contextmanager
    def entered() -> Iterator[None]:
        with engine_on_every_rank(comm), whole_weights():
            yield

    return entered
