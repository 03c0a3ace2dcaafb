"""Values between ranks, so that each is sent what it needs and no more."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from rlhf_core.plugins.strategy_protocols import Collectives
from rlhf_core.types.errors import OtherRankFailed

T = TypeVar("T")


def gather_on_first(ranks: Collectives, value: T) -> list[T]:
    """Every rank's value in rank order, on rank 0; nothing on the others."""
    received = ranks.exchange_objects([value if to == 0 else None for to in range(ranks.world_size)])
    return received if ranks.rank == 0 else []


def scatter_from_first(ranks: Collectives, compute: Callable[[], Sequence[T]]) -> T:
    """This rank's of the values that rank 0 computes, one for each; all ranks call it together.

    Args:
        ranks: all.
        compute: called on rank 0 alone. It may call no collective operation.

    Raises:
        OtherRankFailed: on the other ranks, where ``compute`` raised on rank 0.
    """
    outgoing: Sequence[Any] = [None] * ranks.world_size
    if ranks.rank == 0:
        try:
            values = compute()
            outgoing = [values[0], *_pickled(values[1:])]  # what cannot be sent fails here, where others can be told
        except BaseException as error:
            failed = pickle.dumps(Failed(f"{type(error).__name__}: {error}"))
            ranks.exchange_objects([None, *[failed] * (ranks.world_size - 1)])
            raise
    sent = ranks.exchange_objects(outgoing)[0]
    value = sent if ranks.rank == 0 else pickle.loads(sent)
    if isinstance(value, Failed):
        raise OtherRankFailed(f"rank 0 failed: {value.error}")
    return value


def _pickled(values: Sequence[Any]) -> list[bytes]:
    """Each value, and what is for several ranks once."""
    distinct = {id(value): value for value in values}
    pickled = {key: pickle.dumps(value) for key, value in distinct.items()}
    return [pickled[id(value)] for value in values]


class Failed(NamedTuple):
    """What rank 0 sends instead of a value that it could not compute."""

    error: str


def redistribute(ranks: Collectives, held: Mapping[int, T], wanted: Sequence[Collection[int]]) -> dict[int, T]:
    """What this rank wants, from the ranks that hold it; all ranks call it together.

    Args:
        ranks: all.
        held: place -> value, of this rank; a place is held by one rank at most.
        wanted: places that each rank wants, the same on every rank.

    Returns:
        Place -> value, of the wanted places that some rank holds.
    """
    outgoing = [{place: held[place] for place in places if place in held} for places in wanted]
    return {place: value for part in ranks.exchange_objects(outgoing) for place, value in part.items()}


def lent(ranks: Collectives, value: T | None, present: Sequence[bool]) -> T | None:
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
