"""A thread that samples and scores rollout batches, one after another, from a copy of the policy."""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

from rlhf_core.plugins.component_calls import stack_of
from rlhf_core.plugins.strategy_protocols import Collectives
from rlhf_core.runs.session import Emit, Event
from rlhf_core.training.rollout_batch import RolloutBatch
from rlhf_core.training.trace import Timer
from rlhf_core.training.weight_sync import Snapshot, WeightSync
from rlhf_core.types.errors import DeadlineExceeded

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
    weights: Snapshot | None
    """None where the engine has them already, or newer ones."""


Collect = Callable[[int, int, Emit, Timer], RolloutBatch]
"""(Number, version, emit, timer) -> batch; see :meth:`RolloutCollector.collect`."""


class RolloutWorker:
    """Makes batches in the order they are requested; nothing it does depends on when.

    Everything that sampling changes (data order, difficulty, a stateful reward) is changed by this thread alone, batch
    after batch, so it is the same in every run. The other side may only touch it once :meth:`BufferedSource.drain` has
    waited for every request. ``model`` is the copy that is sampled from, None where the engine has weights of its own;
    ``on_every_rank`` a context that all ranks leave with the loss of an engine, or none.
    """

    def __init__(
        self,
        collect: Collect,
        weight_sync: WeightSync,
        model: Any | None,
        timeout_s: float,
        ranks: Collectives | None = None,
        on_every_rank: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.collect, self.weight_sync, self.timeout_s, self.ranks = collect, weight_sync, timeout_s, ranks
        self.on_every_rank = on_every_rank
        self._requests: queue.Queue[BatchRequest | None] = queue.Queue()
        self._ready = threading.Condition()
        self._finished: dict[int, RolloutBatch] = {}
        self._error: BaseException | None = None
        self._open = True
        embeddings = None if model is None else model.get_input_embeddings()
        self._cancel = None if embeddings is None else embeddings.register_forward_pre_hook(self._check_open)
        self._thread = threading.Thread(target=self._work, name="rollout worker", daemon=True)
        self._thread.start()

    def request(self, number: int, version: int, weights: Snapshot | None) -> None:
        """Ask for a batch; returns at once. Without weights it is sampled with those that the engine has then."""
        self._requests.put(BatchRequest(number, version, weights))

    def wait(self, number: int, version: int) -> RolloutBatch:
        """The batch of an earlier request, when it is there."""
        began = time.monotonic()
        with self._ready:
            while number not in self._finished:
                waited = time.monotonic() - began
                if self._error is not None:
                    raise self._error
                if waited > self.timeout_s or not self._thread.is_alive():
                    raise self._late(number, version, waited)
                if self._ready.wait(min(HEARTBEAT_S, max(0.01, self.timeout_s - waited))) is False and waited > 1:
                    log.info("waiting for rollout batch %d for %.0f s", number, time.monotonic() - began)
            return self._finished.pop(number)

    def _late(self, number: int, version: int, waited: float) -> DeadlineExceeded:
        working = self._thread.is_alive()
        return DeadlineExceeded(
            f"rollout batch {number} (policy version {version}) was not there after {waited:.0f} s",
            why=f"the thread that samples it is at\n{stack_of(sys._current_frames().get(self._thread.ident or 0))}"
            if working
            else "its thread has ended",
            fix="raise trainer.rollouts.timeout_s, or find what hangs in the engine or the reward",
        )

    def close(self) -> None:
        """Cancel what is being made and end the thread; idempotent."""
        self._open = False
        self._requests.put(None)
        self._thread.join(CLOSE_S)
        if self._cancel is not None:
            self._cancel.remove()
        if self._thread.is_alive():
            log.warning("the rollout worker did not end within %.0f s: a reward or engine call hangs", CLOSE_S)

    def _work(self) -> None:
        """The thread: until closed or failed."""
        idle_since = time.monotonic()
        while self._open and threading.main_thread().is_alive():
            try:
                request = self._requests.get(timeout=1.0)
            except queue.Empty:
                continue
            if request is None:
                return
            try:
                batch = self._make(request, time.monotonic() - idle_since)
            except BaseException as error:
                with self._ready:
                    self._error = error
                    self._ready.notify_all()
                return
            idle_since = time.monotonic()
            with self._ready:
                self._finished[request.number] = batch
                self._ready.notify_all()

    def _make(self, request: BatchRequest, idle_s: float) -> RolloutBatch:
        if request.weights is not None:
            with self.on_every_rank():
                self.weight_sync.load(request.version, request.weights, self.ranks)
        timer, events = Timer(), list[Event]()
        timer.seconds["worker_wait"] = idle_s
        batch = self.collect(request.number, request.version, lambda name, *row: events.append((name, row)), timer)
        return replace(batch, events=events, seconds=timer.seconds)

    def _check_open(self, *_: object) -> None:
        """Before every forward of the copy; in this way a long decode is cancelled at its next token."""
        if not self._open:
            raise Cancelled
