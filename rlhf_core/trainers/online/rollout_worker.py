"""A thread that samples and scores rollout batches, one after another, from a copy of the policy."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rlhf_core.errors import DeadlineExceeded
from rlhf_core.models.sampler_policy import SamplerPolicy
from rlhf_core.runs.timer import Timer
from rlhf_core.trainers.online.collector import RolloutBatch
from rlhf_core.trainers.online.events import EventLog, EventSink

log = logging.getLogger("rlhf.rollout")
HEARTBEAT_S = 60.0
"""The learner says that it waits after so many seconds, and again after as many more."""
CLOSE_S = 60.0
"""How long :meth:`RolloutWorker.close` waits for a call that cannot be cancelled, such as a reward's."""


class Cancelled(BaseException):
    """The run ended while a batch was being sampled; no component's ``except Exception`` takes it for its own."""


class BatchRequest(NamedTuple):
    """One batch to be made."""

    number: int
    version: int
    weights: Mapping[str, Any]


Draw = Callable[[int, Timer, EventSink, int], RolloutBatch]
"""(Number, timer, listener, version) -> batch; see :meth:`RolloutCollector.draw`."""


class RolloutWorker:
    """Makes batches in the order they are asked for; nothing it does depends on when.

    Everything that sampling changes (data order, difficulty, a stateful reward) is changed by this thread alone, batch
    after batch, so it is the same in every run. The other side may only touch it once
    :meth:`rlhf_core.trainers.online.scheduler.Pipeline.settle` has waited for every order.

    Args:
        draw: makes one batch.
        copy: is loaded with each order's weights first.
        timeout_s: longest wait for one batch.
    """

    def __init__(self, draw: Draw, copy: SamplerPolicy, timeout_s: float) -> None:
        self.draw, self.copy, self.timeout_s = draw, copy, timeout_s
        self._orders: queue.Queue[BatchRequest | None] = queue.Queue()
        self._ready = threading.Condition()
        self._made: dict[int, RolloutBatch] = {}
        self._error: BaseException | None = None
        self._open = True
        hooked = copy.model.get_input_embeddings()
        self._hook = hooked.register_forward_pre_hook(self._check_open)
        self._thread = threading.Thread(target=self._work, name="rollout producer", daemon=True)
        self._thread.start()

    def order(self, number: int, version: int, weights: Mapping[str, Any]) -> None:
        """Ask for a batch; returns at once."""
        self._orders.put(BatchRequest(number, version, weights))

    def wait(self, number: int, version: int) -> RolloutBatch:
        """The batch of an earlier order, when it is there.

        Raises:
            DeadlineExceeded: it is not there in time.
            BaseException: whatever making it, or one before it, raised.
        """
        began = time.monotonic()
        with self._ready:
            while number not in self._made:
                waited = time.monotonic() - began
                if self._error is not None:
                    raise self._error
                if waited > self.timeout_s or not self._thread.is_alive():
                    raise DeadlineExceeded(
                        f"rollout batch {number} (policy version {version}) was not there after {waited:.0f} s",
                        why="the thread that samples it is still at work"
                        if self._thread.is_alive()
                        else "the thread that samples it has ended",
                        fix="raise trainer.rollouts.timeout_s, or find what hangs in the engine or the reward",
                    )
                if self._ready.wait(min(HEARTBEAT_S, max(0.01, self.timeout_s - waited))) is False and waited > 1:
                    log.info("waiting for rollout batch %d for %.0f s", number, time.monotonic() - began)
            return self._made.pop(number)

    def close(self) -> None:
        """Cancel what is being made and end the thread; idempotent."""
        self._open = False
        self._orders.put(None)
        self._thread.join(CLOSE_S)
        self._hook.remove()
        if self._thread.is_alive():
            log.warning("the rollout producer did not end within %.0f s: a reward or engine call hangs", CLOSE_S)

    def _work(self) -> None:
        """The thread: until closed or failed."""
        idle = time.monotonic()
        while self._open and threading.main_thread().is_alive():
            try:
                order = self._orders.get(timeout=1.0)
            except queue.Empty:
                continue
            if order is None:
                return
            try:
                batch = self._make(order, time.monotonic() - idle)
            except BaseException as error:
                with self._ready:
                    self._error = error
                    self._ready.notify_all()
                return
            idle = time.monotonic()
            with self._ready:
                self._made[order.number] = batch
                self._ready.notify_all()

    def _make(self, order: BatchRequest, idle_s: float) -> RolloutBatch:
        self.copy.put(order.weights)
        timed, notes = Timer(), EventLog()
        timed.seconds["producer_wait"] = idle_s
        batch = self.draw(order.number, timed, notes, order.version)
        batch.notes, batch.seconds = notes, timed.seconds
        return batch

    def _check_open(self, *_: object) -> None:
        """Before every forward of the copy; in this way a long decode is cancelled at its next token."""
        if not self._open:
            raise Cancelled
