"""Which rollout batch is sampled with which policy version, and learned from in which step (ADR 0009).

Everything is decided by counts, nothing by the clock; but for an engine that takes weights while it samples (ADR 0020).
In a checkpoint prompts are named by source and id, and found again in the run's dataset.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from rlhf_core.data import Prompt, PromptGroup
from rlhf_core.distributed.group import engine_on_every_rank
from rlhf_core.plugins.strategy_protocols import Collectives
from rlhf_core.rewards import Score, ScoreStatus
from rlhf_core.rl.settings import RolloutSettings
from rlhf_core.rl.sources import InlineSource, SourceBatch
from rlhf_core.rollouts import EngineUnavailable, FinishReason, Rollout, Turn, TurnStatus, VersionSpan
from rlhf_core.runs.session import Event, RunSession, emit
from rlhf_core.training.rollout_batch import RolloutBatch, RolloutGroup, batch_of, cut_groups, share_bounds
from rlhf_core.training.trace import Timer
from rlhf_core.training.weight_sync import Snapshot
from rlhf_core.types.messages import Segment
from rlhf_plugin_schedule.dataclass_codec import decode, encode
from rlhf_plugin_schedule.rollout_worker import RolloutWorker

PromptsByName = Mapping[tuple[str, str], Prompt]
"""(Source, prompt id) -> prompt."""
CLASSES = (
    RolloutBatch,
    RolloutGroup,
    PromptGroup,
    Rollout,
    Segment,
    VersionSpan,
    Turn,
    Score,
    FinishReason,
    ScoreStatus,
    TurnStatus,
)

RECORDS = ("count", "trace")
"""Events that are not hooks."""


def replay(session: RunSession, step: int, events: Sequence[Event], *, hooks: bool = True) -> None:
    """Pass kept events on, in order; with ``hooks`` off counts and trace rows only."""
    for name, values in events:
        if hooks or name in RECORDS:
            emit(session, step, name, *values)


def batch_state(batch: RolloutBatch) -> dict[str, Any]:
    """A batch as a tree that :mod:`rlhf_core.types.tree` can save."""
    return encode(batch, {Prompt: lambda prompt: (prompt.source, prompt.id)}, CLASSES)


def read_batch(state: Mapping[str, Any], prompts: PromptsByName) -> RolloutBatch:
    """The batch that :func:`batch_state` wrote."""
    return decode(state, CLASSES, {"Prompt": lambda name: prompts[tuple(name)]})


def reshard_batch(parts: Sequence[RolloutBatch], rank: int, world_size: int) -> RolloutBatch:
    """This rank's share of a batch, as if so many ranks had sampled it."""
    groups = parts[0].groups
    sampled = [group for part in parts for group in cut_groups(part.own_groups, part.rollouts, part.scores)]
    bounds = share_bounds(len(groups), world_size)
    batch = batch_of(groups, sampled[bounds[rank] : bounds[rank + 1]], parts[0].version)
    events = _events([part.events for part in parts], batch, rank, world_size)
    return replace(batch, set_aside=parts[0].set_aside, metrics=parts[0].metrics, events=events)


def _events(events_of_ranks: Sequence[Sequence[Event]], batch: RolloutBatch, rank: int, world_size: int) -> list[Event]:
    """Records, which all ranks have alike, and the hook events of this rank: of its own groups, and of its share of the
    prompts that were set aside."""
    rows_by_hook: dict[str, list[Any]] = {}
    for method, arguments in (event for events in events_of_ranks for event in events if event[0] not in RECORDS):
        rows_by_hook.setdefault(method, []).extend(zip(*arguments))
    trained, own = ({g.prompt.id for g in groups} for groups in (batch.groups, batch.own_groups))
    hook_events = []
    for method, rows in rows_by_hook.items():
        set_aside = list(dict.fromkeys(row[0].prompt_id for row in rows if row[0].prompt_id not in trained))
        bounds = share_bounds(len(set_aside), world_size)
        own_prompts = own.union(set_aside[bounds[rank] : bounds[rank + 1]])
        if own_rows := [row for row in rows if row[0].prompt_id in own_prompts]:
            hook_events.append((method, tuple(map(list, zip(*own_rows)))))
    return [*hook_events, *(event for event in events_of_ranks[0] if event[0] in RECORDS)]


@dataclass(frozen=True)
class BufferEntry:
    """One rollout batch, requested or already sampled."""

    number: int
    """Rollout batches are numbered from 1 in the order they are requested."""
    version: int
    reads: int = 0
    batch: RolloutBatch | None = None


class RolloutBuffer:
    """Which batches to request, which to learn from, which to give up."""

    def __init__(self, settings: RolloutSettings, capacity: int) -> None:
        self.max_staleness, self.max_reads, self.capacity = settings.max_staleness, settings.max_reads, capacity
        self.entries: list[BufferEntry] = []
        self.last = 0

    def evict_stale(self, version: int) -> tuple[list[BufferEntry], int]:
        """Drop what has been read often enough, and what is too stale at this version, whether sampled yet or not.

        Returns those that nobody has learned from, oldest first, whose prompts are to be sampled again; and how many
        further reads the others would have had.
        """
        unread, readable = self.stale_unread(version), self.readable()
        self.entries = [e for e in readable if not self._stale(e, version)]
        lost = [self.max_reads - e.reads for e in readable if e.reads and self._stale(e, version)]
        return unread, sum(lost)

    def stale_unread(self, version: int) -> list[BufferEntry]:
        """Those that :meth:`evict_stale` would give up although nobody has learned from them, oldest first."""
        return [e for e in self.entries if not e.reads and self._stale(e, version)]

    def _stale(self, entry: BufferEntry, version: int) -> bool:
        return version - entry.version > self.max_staleness

    def num_to_request(self, steps_left: int) -> int:
        """How many batches to request now: up to capacity, and no more than the remaining steps will read."""
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
        index = next(n for n, entry in enumerate(self.entries) if entry.number == number)
        self.entries[index] = replace(self.entries[index], batch=batch)
        return self.entries[index]

    def read(self) -> BufferEntry:
        """The oldest entry, counted as read once more: what to learn from next."""
        assert self.entries, "no rollout batch was requested"
        oldest = self.entries[0]
        self.entries[0] = replace(oldest, reads=oldest.reads + 1)
        return self.entries[0]

    def cancel(self, number: int) -> None:
        """Forget the newest entry, which could not be made."""
        assert self.entries.pop().number == number == self.last
        self.last -= 1

    def unfinished(self) -> list[BufferEntry]:
        """Entries that are requested and have not been waited for, oldest first."""
        return [e for e in self.entries if e.batch is None]

    def readable(self) -> list[BufferEntry]:
        """Entries that will be read again."""
        return [e for e in self.entries if e.reads < self.max_reads]


class BufferedSource(InlineSource):
    """Decides what is sampled ahead, and which step learns from it; see :class:`InlineSource`.

    The schedule moves at one point only, the beginning of a step: what has been read or become too stale leaves the
    buffer, and what there is room for is requested with the weights as they are then. With room for C batches beside
    the one that is learned from, batch k is sampled with the weights of the end of step k - 1 - C. How long anything
    takes decides nothing, so two runs are equal.
    """

    def __init__(
        self,
        inline: InlineSource,
        settings: RolloutSettings,
        capacity: int,
        steps: int,
        comm: Collectives,
        on_every_rank: Callable[[], AbstractContextManager[None]],
    ) -> None:
        super().__init__(inline.collector, inline.weight_sync, inline.session)
        self.buffer, self.steps, self.prompts = RolloutBuffer(settings, capacity), steps, inline.collector.prompts
        self.worker = None
        if capacity:
            model = None if self.weight_sync.sampler is None else self.weight_sync.sampler.model
            collect, limit = self.collector.collect, settings.timeout_s
            self.worker = RolloutWorker(collect, self.weight_sync, model, limit, comm, on_every_rank)
            self.session.components.attach("the rollout worker", self.worker)
        self._engine_error: EngineUnavailable | None = None
        """Why nothing is sampled any more; all ranks know it."""

    def next_batch(self, step: int, version: int, timer: Timer, number: int | None = None) -> SourceBatch:
        """See :meth:`InlineSource.next_batch`."""
        evicted_prompts = self._evict(step, version)
        synced = self._request(step, version, timer)
        entry = self.buffer.read()
        with timer("learner_wait") if self.worker is not None else contextlib.nullcontext():
            entry = self._finished(entry)
        assert entry.batch is not None
        if entry.reads == 1:
            replay(self.session, step, entry.batch.events)
            timer.seconds |= entry.batch.seconds
        metrics = {
            **self._metrics(entry, version, evicted_prompts),
            **synced,
            **getattr(self.weight_sync.engine, "sync_metrics", dict)(),
        }
        return SourceBatch(entry.batch, entry.reads == 1, metrics)

    def _request(self, step: int, version: int, timer: Timer) -> Mapping[str, float]:
        """Ask for as many batches as there is room for; without a worker they are made here. Returns what syncs cost
        for those."""
        synced: dict[str, float] = {}
        count = self.buffer.num_to_request(self.steps - step + 1)
        weights: Snapshot | None = None
        if self.in_flight and (count or self.buffer.unfinished()):
            with timer("weight_sync"), engine_on_every_rank(self.session.strategy):
                self.weight_sync.sync(version)
        elif count and self.worker is not None:
            weights = self.weight_sync.snapshot(version)
        for _ in range(count):
            number = self.buffer.add(version).number
            if self.worker is not None:
                self.worker.request(number, version, weights)
                continue
            try:
                batch, _, metrics = super().next_batch(step, version, timer, number)
                self.buffer.deliver(number, batch)
                synced |= metrics
            except EngineUnavailable:  # what cannot be sampled is not counted as requested
                self.buffer.cancel(number)
                raise
        return synced

    @property
    def in_flight(self) -> bool:
        """New weights reach what is being sampled: they are published at once, not with a batch."""
        return self.worker is not None and self.weight_sync.in_flight

    def _evict(self, step: int, version: int) -> int:
        """Let go of what is read or too stale; return how many prompts are to be sampled again.

        What was counted and traced while an evicted batch was made is recorded all the same.
        """
        if self.buffer.stale_unread(version):
            self.drain()  # the data order may only be touched where nothing is being sampled
        unread, reads = self.buffer.evict_stale(version)
        batches = [entry.batch for entry in unread if entry.batch is not None]
        groups = [g for batch in batches for g in (*batch.groups, *(aside.group for aside in batch.set_aside))]
        if groups:
            self.prompts.put_back(groups)
        for batch in batches:
            replay(self.session, step, batch.events, hooks=False)  # nobody will train on its rollouts
            missing = [s.status.value for s in batch.scores if not s.ok]
            for rank in self.session.strategy.gather_objects(missing):
                self.session.counts.update(f"evicted_score_{status}" for status in rank)
        counts = {"prompts_evicted": len(groups), "reads_evicted": reads}
        self.session.counts.update({name: n for name, n in counts.items() if n})
        return len(groups)

    def _finished(self, entry: BufferEntry) -> BufferEntry:
        if entry.batch is not None:
            return entry
        assert self.worker is not None
        try:
            with engine_on_every_rank(self.session.strategy):
                batch = self.worker.wait(entry.number, entry.version)
        except EngineUnavailable as error:
            self._engine_error = error
            raise
        return self.buffer.deliver(entry.number, batch)

    def drain(self) -> None:
        """Wait until nothing is being sampled."""
        if self._engine_error is not None:
            raise self._engine_error
        for entry in self.buffer.unfinished():
            self._finished(entry)

    def release_memory(self) -> None:
        """See :meth:`InlineSource.release_memory`."""
        if self.worker is None:
            super().release_memory()

    def sync_policy(self, version: int) -> None:
        """See :meth:`InlineSource.sync_policy`."""
        self.drain()
        super().sync_policy(version)

    def _metrics(self, entry: BufferEntry, version: int, evicted_prompts: int) -> dict[str, float]:
        if not self.buffer.max_staleness:
            return {}
        mean = largest = float(version - entry.version)
        if self.in_flight and entry.batch is not None:
            mean, largest = self._staleness_of_tokens(entry.batch, version)
        return {
            "staleness/mean": mean,
            "staleness/max": largest,
            "buffer/batches": len(self.buffer.entries) - 1.0,
            "buffer/reads": float(entry.reads),
            "buffer/evicted": float(evicted_prompts),
        }

    def _staleness_of_tokens(self, batch: RolloutBatch, version: int) -> tuple[float, float]:
        """(Mean, largest) updates since the weights that sampled each token, over all ranks."""
        ages = [version - sampled_by for rollout in batch.rollouts for sampled_by in _version_of_each_token(rollout)]
        total, tokens = self.session.strategy.sum_over_ranks([float(sum(ages)), float(len(ages))])
        return total / max(1.0, tokens), float(self.session.strategy.max_over_ranks(max(ages, default=0)))

    def state_dict(self) -> dict[str, Any]:
        """Every finished batch that is still to be read, this rank's share; unfinished ones are waited for."""
        self.drain()
        entries = []
        for entry in self.buffer.readable():
            assert entry.batch is not None
            batch = replace(entry.batch, seconds={}, events=() if entry.reads else entry.batch.events)
            row = {"number": entry.number, "version": entry.version, "reads": entry.reads}
            entries.append({**row, "batch": batch_state(batch)})
        return {"last": self.buffer.last, "entries": entries, "returned": self.prompts.returned_names()}

    def load_state_dict(self, ranks: Sequence[Mapping[str, Any]]) -> None:
        """See :meth:`InlineSource.load_state_dict`; other ranks than wrote the checkpoint divide each batch anew."""
        prompts, comm = self.prompts.by_name(), self.session.strategy
        as_written = len(ranks) == comm.world_size
        state = ranks[comm.rank if as_written else 0]
        self.buffer.last, self.buffer.entries = state["last"], []
        for index, row in enumerate(state["entries"]):
            if as_written:
                batch = read_batch(row["batch"], prompts)
            else:
                parts = [read_batch(rank["entries"][index]["batch"], prompts) for rank in ranks]
                batch = reshard_batch(parts, comm.rank, comm.world_size)
            self.buffer.entries.append(BufferEntry(row["number"], row["version"], row["reads"], batch))
        self.prompts.put_back_named(state["returned"])


def _version_of_each_token(rollout: Rollout) -> list[int]:
    """The version of the weights that sampled each token, of those that the policy sampled."""
    tokens = len(rollout.completion_ids)
    every = [s.version for s in rollout.versions for _ in range(*s.span)] or [rollout.policy_version] * tokens
    return every if rollout.mask_T is None else [v for v, sampled in zip(every, rollout.mask_T) if sampled]
