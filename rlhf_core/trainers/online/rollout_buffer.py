"""The rollout batches that wait to be learned from. Everything is decided by counts, nothing by the clock."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_core.trainers.online.collector import RolloutBatch
from rlhf_core.trainers.online.rollout_config import RolloutSettings


@dataclass
class BufferEntry:
    """One rollout batch, ordered or already sampled."""

    number: int
    """Rollout batches are numbered from 1 in the order they are asked for."""
    version: int
    """Policy version it is sampled with."""
    reads: int = 0
    """Steps that have trained on it."""
    batch: RolloutBatch | None = None
    """None until it has been waited for."""


@dataclass(frozen=True)
class Retired:
    """What left the buffer when the version moved."""

    unread: tuple[BufferEntry, ...] = ()
    """Too stale before anybody read them, oldest first; their prompts are to be sampled again."""
    reads: int = 0
    """Further reads that batches would have had if they had not become too stale."""


class RolloutBuffer:
    """Which batches to order, which to learn from, which to give up.

    Args:
        settings: bounds.
        capacity: batches beyond the one that is learned from.
    """

    def __init__(self, settings: RolloutSettings, capacity: int) -> None:
        self.max_staleness, self.max_reads, self.capacity = settings.max_staleness, settings.max_reads, capacity
        self.slots: list[BufferEntry] = []
        """Oldest first."""
        self.last = 0
        """Number of the newest slot so far."""

    def move(self, version: int) -> Retired:
        """Drop what has been read often enough, and what is too stale at this version, whether sampled yet or not."""
        unread, live = self.stale_unread(version), self.to_keep()
        self.slots = [s for s in live if not self._stale(s, version)]
        cut = [self.max_reads - s.reads for s in live if s.reads and self._stale(s, version)]
        return Retired(tuple(unread), sum(cut))

    def stale_unread(self, version: int) -> list[BufferEntry]:
        """Those that :meth:`move` would give up although nobody has learned from them, oldest first."""
        return [s for s in self.slots if not s.reads and self._stale(s, version)]

    def _stale(self, slot: BufferEntry, version: int) -> bool:
        return version - slot.version > self.max_staleness

    def wanted(self, steps_left: int) -> int:
        """How many batches to order now: up to capacity, and no more than the remaining steps will read.

        Args:
            steps_left: steps to come, the one about to begin included.
        """
        reads, count = sum(self.max_reads - s.reads for s in self.slots), 0
        while len(self.slots) + count <= self.capacity and reads < steps_left:
            reads, count = reads + self.max_reads, count + 1
        return count

    def add(self, version: int) -> BufferEntry:
        """A new slot, for a batch that is ordered now."""
        self.last += 1
        self.slots.append(BufferEntry(self.last, version))
        return self.slots[-1]

    def oldest(self) -> BufferEntry:
        """The one to learn from next."""
        assert self.slots, "nothing was ordered"
        return self.slots[0]

    def unfinished(self) -> list[BufferEntry]:
        """Slots that are ordered and have not been waited for, oldest first."""
        return [s for s in self.slots if s.batch is None]

    def to_keep(self) -> list[BufferEntry]:
        """Slots that will be read again."""
        return [s for s in self.slots if s.reads < self.max_reads]
