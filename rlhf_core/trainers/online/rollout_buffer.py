"""The rollout batches that wait to be learned from. Everything is decided by counts, nothing by the clock."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlhf_core.rollout_batch import RolloutBatch
from rlhf_core.trainers.online.rollout_config import RolloutSettings


@dataclass(frozen=True)
class BufferEntry:
    """One rollout batch, requested or already sampled."""

    number: int
    """Rollout batches are numbered from 1 in the order they are requested."""
    version: int
    """Policy version it is sampled with."""
    reads: int = 0
    """Steps that have trained on it."""
    batch: RolloutBatch | None = None
    """None until it has been waited for."""


@dataclass(frozen=True)
class Evicted:
    """What left the buffer because it was too stale."""

    unread: tuple[BufferEntry, ...] = ()
    """Nobody has learned from them, oldest first; their prompts are to be sampled again."""
    reads: int = 0
    """Further reads that batches would have had."""


class RolloutBuffer:
    """Which batches to request, which to learn from, which to give up.

    Args:
        settings: bounds.
        capacity: batches beyond the one that is learned from.
    """

    def __init__(self, settings: RolloutSettings, capacity: int) -> None:
        self.max_staleness, self.max_reads, self.capacity = settings.max_staleness, settings.max_reads, capacity
        self.entries: list[BufferEntry] = []
        """Oldest first."""
        self.last = 0
        """Number of the newest entry so far."""

    def evict_stale(self, version: int) -> Evicted:
        """Drop what has been read often enough, and what is too stale at this version, whether sampled yet or not."""
        unread, readable = self.stale_unread(version), self.readable()
        self.entries = [e for e in readable if not self._stale(e, version)]
        lost = [self.max_reads - e.reads for e in readable if e.reads and self._stale(e, version)]
        return Evicted(tuple(unread), sum(lost))

    def stale_unread(self, version: int) -> list[BufferEntry]:
        """Those that :meth:`evict_stale` would give up although nobody has learned from them, oldest first."""
        return [e for e in self.entries if not e.reads and self._stale(e, version)]

    def _stale(self, entry: BufferEntry, version: int) -> bool:
        return version - entry.version > self.max_staleness

    def num_to_request(self, steps_left: int) -> int:
        """How many batches to request now: up to capacity, and no more than the remaining steps will read.

        Args:
            steps_left: steps to come, the one about to begin included.
        """
        reads, count = sum(self.max_reads - e.reads for e in self.entries), 0
        while len(self.entries) + count <= self.capacity and reads < steps_left:
            reads, count = reads + self.max_reads, count + 1
        return count

    def add(self, version: int) -> BufferEntry:
        """A new entry, for a batch that is requested now."""
        self.last += 1
        self.entries.append(BufferEntry(self.last, version))
        return self.entries[-1]

    def deliver(self, number: int, batch: RolloutBatch) -> BufferEntry:
        """Put a finished batch in its entry; return the entry."""
        place = next(n for n, entry in enumerate(self.entries) if entry.number == number)
        self.entries[place] = replace(self.entries[place], batch=batch)
        return self.entries[place]

    def read(self) -> BufferEntry:
        """The oldest entry, counted as read once more: what to learn from next."""
        assert self.entries, "no rollout batch was requested"
        oldest = self.entries[0]
        self.entries[0] = replace(oldest, reads=oldest.reads + 1)
        return self.entries[0]

    def unfinished(self) -> list[BufferEntry]:
        """Entries that are requested and have not been waited for, oldest first."""
        return [e for e in self.entries if e.batch is None]

    def readable(self) -> list[BufferEntry]:
        """Entries that will be read again."""
        return [e for e in self.entries if e.reads < self.max_reads]
