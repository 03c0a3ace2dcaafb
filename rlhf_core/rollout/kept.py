"""Keys and values that are kept between the turns of an episode, within a budget."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from rlhf_core.kernels.kv_cache import Kept


@dataclass(frozen=True)
class _Entry:
    ids: tuple[int, ...]
    kept: Kept
    size: int


class KeptTurns:
    """What of each episode has been read already. Only counts of bytes decide what is kept, never a clock.

    What does not fit is not kept, and what is kept stays until its episode takes it: episodes come round in turns, so
    that making room by dropping the oldest would drop just what is wanted next.

    Args:
        budget: most bytes; 0 keeps nothing.
    """

    def __init__(self, budget: int) -> None:
        self.budget, self.used, self.most_used = budget, 0, 0
        self.refused = 0
        """Turns that did not fit, whose episodes were read anew."""
        self._entries: dict[Hashable, _Entry] = {}

    def put(self, name: Hashable, ids: Sequence[int], kept: Kept) -> None:
        """Keep the keys and values of ``ids`` under an episode's name, if there is room."""
        self.drop(name)
        size = sum(t.numel() * t.element_size() for pair in kept for t in pair)
        if self.used + size > self.budget:
            self.refused += 1
            return
        self._entries[name] = _Entry(tuple(ids), kept, size)
        self.used += size
        self.most_used = max(self.most_used, self.used)

    def common(self, name: Hashable, ids: Sequence[int]) -> int:
        """How many leading tokens of ``ids`` need not be read; at least one is left to be read."""
        entry = self._entries.get(name)
        if entry is None:
            return 0
        most = min(len(entry.ids), len(ids) - 1)
        if entry.ids[:most] == tuple(ids[:most]):
            return most
        return next(n for n in range(most) if entry.ids[n] != ids[n])

    def take(self, name: Hashable, count: int) -> Kept:
        """Keys and values of an episode's first ``count`` tokens, which are then no longer kept."""
        kept = self._entries[name].kept
        self.drop(name)
        return [(k[:, :count], v[:, :count]) for k, v in kept]

    def drop(self, name: Hashable) -> None:
        """Forget an episode; nothing where it is not known."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            self.used -= entry.size
