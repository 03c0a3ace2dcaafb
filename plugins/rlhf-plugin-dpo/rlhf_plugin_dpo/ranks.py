"""Values to rank 0, which holds the pairs of all ranks, and from it to the rank that needs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from rlhf_core.distributed import Strategy
from rlhf_plugin_dpo.items import PairItem

T = TypeVar("T")


def on_first(strategy: Strategy, value: T) -> list[T]:
    """Every rank's value in rank order, on rank 0; nothing on the others."""
    values = strategy.exchange_objects([value if to == 0 else None for to in range(strategy.world_size)])
    return values if strategy.rank == 0 else []


def from_first(strategy: Strategy, values: Sequence[T]) -> T:
    """This rank's of the values that rank 0 has, one for each; what the others give is not looked at."""
    return strategy.exchange_objects(values if strategy.rank == 0 else [None] * strategy.world_size)[0]


class DealtPairs(NamedTuple):
    """This rank's pairs of a batch."""

    pairs: list[PairItem]
    size: int
    """Pairs of the whole batch."""
    tokens: int
    """Completion tokens of the whole batch."""


def deal(strategy: Strategy, items: Sequence[PairItem]) -> DealtPairs:
    """Send each rank its pairs of a batch that rank 0 holds, one after the other; all ranks call it together."""
    world, tokens = strategy.world_size, sum(item.tokens for item in items)
    return from_first(strategy, [DealtPairs(list(items[rank::world]), len(items), tokens) for rank in range(world)])


def undealt(shards: Sequence[Sequence[T]]) -> list[T]:
    """Values of dealt pairs, from every rank, in the order of the batch."""
    return [shards[n % len(shards)][n // len(shards)] for n in range(sum(map(len, shards)))]
