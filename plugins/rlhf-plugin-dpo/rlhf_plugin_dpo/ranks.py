"""Pairs of a batch, divided among the ranks and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from rlhf_plugin_dpo.items import PairItem

T = TypeVar("T")


class DealtPairs(NamedTuple):
    """One rank's pairs of a batch."""

    pairs: list[PairItem]
    size: int
    """Pairs of the whole batch."""
    tokens: int
    """Completion tokens of the whole batch."""


def dealt_to_each(items: Sequence[PairItem], world_size: int) -> list[DealtPairs]:
    """Each rank's pairs of a batch, one after the other."""
    tokens = sum(item.tokens for item in items)
    return [DealtPairs(list(items[rank::world_size]), len(items), tokens) for rank in range(world_size)]


def undealt(shards: Sequence[Sequence[T]]) -> list[T]:
    """Values of dealt pairs, from every rank, in the order of the batch."""
    return [shards[n % len(shards)][n // len(shards)] for n in range(sum(map(len, shards)))]
