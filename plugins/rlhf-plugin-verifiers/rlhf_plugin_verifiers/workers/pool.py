"""A fixed number of verifier workers; every call has a deadline, and a lost worker is replaced."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from rlhf_core.rewards import Sample, Score
from rlhf_core.types.errors import DeadlineExceeded
from rlhf_plugin_verifiers.workers.killable import EXIT_GRACE_S
from rlhf_plugin_verifiers.workers.worker_handle import WorkerProcess, worker_spec

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext
    from rlhf_plugin_verifiers.reward_config import RewardWorkersConfig


T = TypeVar("T")


class VerifierPool:
    """Runs one verifier in several worker processes.

    Every worker finds the verifier again through its own entry points and refuses to serve if that is not the
    planned distribution, version and object. A call that is late is killed with all the processes it started.
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        *,
        workers: int,
        timeout_s: float,
        start_timeout_s: float,
        recycle_after_calls: int | None = None,
        recycle_above_mb: int | None = None,
    ) -> None:
        self.timeout_s, self.start_timeout_s = timeout_s, start_timeout_s
        limits = (recycle_after_calls, recycle_above_mb)
        self.workers = [WorkerProcess(spec, start_timeout_s, *limits) for _ in range(workers)]
        self._idle: SimpleQueue[WorkerProcess] = SimpleQueue()
        # A worker dies with the *thread* that started it, so all are started by threads that live as long as the pool.
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix=f"verifier-{self.workers[0].name}")
        self._finalizer = weakref.finalize(self, _stop, self.workers, self._threads)
        try:
            self._all([self._threads.submit(w.start) for w in self.workers], "to start", start_timeout_s + EXIT_GRACE_S)
        except BaseException:
            self.close()
            raise
        for worker in self.workers:
            self._idle.put(worker)

    def verify(self, samples: Sequence[Sample]) -> list[Score]:
        """One verdict per sample, in order; ``timeout`` and ``error`` are statuses, never 0.0. Only a completion that
        kept a verifier computing until its deadline is wrong (see :meth:`WorkerProcess.call`)."""
        rounds = math.ceil(len(samples) / len(self.workers))
        budget = rounds * 2 * (self.timeout_s + self.start_timeout_s + 2 * EXIT_GRACE_S)  # the reference's turn too
        calls = [self._threads.submit(self._call, s) for s in samples]
        return self._all(calls, f"to answer {len(samples)} calls", budget)

    def _call(self, sample: Sample) -> Score:
        worker = self._idle.get()
        try:
            return worker.call(sample, self.timeout_s)
        finally:
            self._idle.put(worker)

    def _all(self, futures: Sequence[Future[T]], what: str, timeout_s: float) -> list[T]:
        try:
            return [f.result(timeout_s) for f in futures]
        except FutureTimeout as error:
            if isinstance(error, DeadlineExceeded):
                raise
            name = self.workers[0].name
            raise DeadlineExceeded(f"waited {timeout_s:g} s for the workers of verifier '{name}' {what}") from error

    @property
    def restarts(self) -> int:
        """Workers replaced so far because they were late or died."""
        return sum(w.lost for w in self.workers)

    @property
    def recycled(self) -> int:
        """Workers ended so far because they had done their share; the next call starts a new one."""
        return sum(w.recycled for w in self.workers)

    def close(self) -> None:
        """Kill every worker; idempotent, and called at exit if forgotten."""
        self._finalizer()


def _stop(workers: Sequence[WorkerProcess], threads: ThreadPoolExecutor) -> None:
    threads.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.closed = True
        worker.kill()
    threads.shutdown(wait=True)
    for worker in workers:  # one that a thread was just starting
        worker.kill()


START_TIMEOUT_S = 300.0


class RewardWorkers(VerifierPool):
    """Calls a reward in processes that are killed when late; what was lost has status ``timeout`` or ``error``.

    Each worker builds the reward anew, with a context that has no run, policy or data.
    """

    def __init__(self, config: RewardWorkersConfig, ctx: BuildContext) -> None:
        spec = worker_spec("reward", config.of, ctx.registry, ctx.run_dir)
        super().__init__(spec, workers=config.workers, timeout_s=config.timeout_s, start_timeout_s=START_TIMEOUT_S)

    score = VerifierPool.verify


class OneByOne:
    """In the worker: a reward that is asked as a verifier is; it keeps no state, which no checkpoint would hold."""

    def __init__(self, reward: Any) -> None:
        self.reward = reward

    def verify(self, sample: Sample) -> Score:
        """The score of one completion."""
        (score,) = self.reward.score([sample])
        return score
