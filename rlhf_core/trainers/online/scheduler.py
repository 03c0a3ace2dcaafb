"""Hands the loop its rollout batches: sampled when they are asked for, or ahead, by a thread (ADR 0009)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlhf_core.runs.timer import Timer
from rlhf_core.strategy.group import RankGroup
from rlhf_core.trainers.common.config import OnlineTrainerConfig
from rlhf_core.trainers.online.batch_codec import pack, unpack
from rlhf_core.trainers.online.collector import RolloutBatch, RolloutCollector
from rlhf_core.trainers.online.events import EventSink, LiveEvents
from rlhf_core.trainers.online.rollout_buffer import BufferEntry, RolloutBuffer
from rlhf_core.trainers.online.rollout_worker import RolloutWorker

if TYPE_CHECKING:
    from rlhf_core.runs.session import RunSession
    from rlhf_core.trainers.online.build import OnlineParts


class RolloutScheduler:
    """The schedule: which batch is sampled with which version, and learned from in which step.

    It moves at one point only, the beginning of a step: what has been read or become too stale leaves the buffer, and
    what there is room for is ordered with the weights as they are then. With room for C batches beside the one that is
    learned from, batch k is sampled with the weights of the end of step k - 1 - C. How long anything takes decides
    nothing, so two runs are equal, and a run without room is the synchronous one.

    Args:
        house: furnished.
        config: the trainer's settings.
        session: counts, trace and hooks.
    """

    def __init__(self, house: OnlineParts, config: OnlineTrainerConfig, session: RunSession) -> None:
        self.house, self.config, self.session = house, config, session
        capacity = config.rollouts.ahead(config.updates_per_step)
        self.buffer = RolloutBuffer(config.rollouts, capacity)
        self.evicted = 0
        """Prompts whose batch became too stale before it was read, when the version last moved."""
        self.intake, self.producer = house.intake, None
        if house.copy is not None:
            timeout = config.rollouts.timeout_s
            channel = RankGroup(house.strategy, timeout, house.intake.shares)
            self.intake = RolloutCollector(house, config, session, channel)
            self.producer = RolloutWorker(self._draw, house.copy, timeout)
            session.parts.attach("the rollout producer", self.producer)

    def _draw(self, number: int, timed: Timer, tell: EventSink, version: int) -> RolloutBatch:
        return self.intake.draw(number, timed, tell=tell, version=version)

    def next(self, step: int, timed: Timer) -> tuple[BufferEntry, RolloutBatch]:
        """The batch that this step learns from; all ranks call it together.

        Raises:
            DeadlineExceeded: it was not there in time.
            ScoreError: too many scores are missing.
        """
        version = self.house.updater.version
        self._move(step, version)
        wanted = self.buffer.wanted(self.config.steps - step + 1)
        weights = self._weights() if wanted and self.producer is not None else {}
        for slot in [self.buffer.add(version) for _ in range(wanted)]:
            if self.producer is not None:
                self.producer.order(slot.number, version, weights)
            else:
                slot.batch = self.intake.draw(slot.number, timed, tell=LiveEvents(self.session, step))
        slot = self.buffer.oldest()
        with timed("learner_wait") if self.producer is not None else contextlib.nullcontext():
            batch = self._finished(slot)
        slot.reads += 1
        batch.notes.read_out(LiveEvents(self.session, step))
        return slot, batch

    def _move(self, step: int, version: int) -> None:
        """Let go of what is read or too stale; prompts that nobody has learned from come next, and what was counted
        and traced while their batch was made is told all the same."""
        if self.buffer.stale_unread(version):
            self.settle()  # the data order may only be touched where nothing is being sampled
        retired = self.buffer.move(version)
        groups = [g for s in retired.unread for g in drawn(s.batch)]
        if groups:  # then we have settled
            self.house.library.put_back(groups)
        for batch in (s.batch for s in retired.unread if s.batch is not None):
            batch.notes.read_out(LiveEvents(self.session, step), hooks=False)  # nobody will train on its rollouts
            missing = [s.status.value for s in batch.scores if not s.ok]
            for rank in self.house.strategy.gather_objects(missing):
                self.session.counts.update(f"evicted_score_{status}" for status in rank)
        found = {"prompts_evicted": len(groups), "reads_evicted": retired.reads}
        self.session.counts.update({k: n for k, n in found.items() if n})
        self.evicted = len(groups)

    def _weights(self) -> Mapping[str, Any]:
        house = self.house
        assert house.copy is not None
        with house.strategy.gathered(house.module):
            return house.copy.take(house.policy.model)

    def _finished(self, slot: BufferEntry) -> RolloutBatch:
        if slot.batch is None:
            assert self.producer is not None
            slot.batch = self.producer.wait(slot.number, slot.version)
        return slot.batch

    def settle(self) -> None:
        """Wait until nothing is being sampled."""
        for slot in self.buffer.unfinished():
            self._finished(slot)

    def lend(self) -> None:
        """Let whoever samples next in the learner's own thread find the policy as it is now."""
        self.settle()
        if self.house.copy is not None:
            self.house.copy.put(self._weights())

    def metrics(self, slot: BufferEntry) -> dict[str, float]:
        """How stale the batch of a step is, and what waits; nothing for a synchronous run."""
        if not self.config.rollouts.max_staleness:
            return {}
        staleness = float(self.house.updater.version - slot.version)
        return {
            "staleness/mean": staleness,
            "staleness/max": staleness,
            "buffer/batches": len(self.buffer.slots) - 1.0,
            "buffer/reads": float(slot.reads),
            "buffer/evicted": float(self.evicted),
        }

    def state_dict(self) -> dict[str, Any]:
        """Every finished batch that is still to be read, this rank's share; unfinished ones are waited for."""
        self.settle()
        slots = [
            {"number": s.number, "version": s.version, "reads": s.reads, "batch": pack(self._finished(s))}
            for s in self.buffer.to_keep()
        ]
        return {
            "last": self.buffer.last,
            "slots": slots,
            "returned": [[p.source, p.id] for p in self.house.library.returned],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with them."""
        walks = self.house.library.order.walks
        prompts = {(source, p.id): p for source, walk in walks.items() for p in walk.prompts}
        self.buffer.last = state["last"]
        self.buffer.slots = [
            BufferEntry(
                s["number"], s["version"], s["reads"], unpack(s["batch"], lambda source, name: prompts[source, name])
            )
            for s in state["slots"]
        ]
        self.house.library.returned = [prompts[source, name] for source, name in state["returned"]]


def drawn(batch: RolloutBatch | None) -> list[Any]:
    """The groups that a batch took from the library."""
    return [] if batch is None else [*batch.groups, *(s.group for s in batch.aside)]
