"""Judges completions while others are sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from rlhf_core.rollouts import Rollout

Row = dict[str, Any]
Batch = list[tuple[int, Rollout]]


class BatchedJudge:
    """One thread that judges; what ends meanwhile is the next batch, so that workers get many at a time."""

    def __init__(self, judge: Callable[[Batch], list[Row]]) -> None:
        self.judge = judge
        self.rows: list[Row] = []
        self._waiting: Batch = []
        self._running: Future[list[Row]] | None = None
        self._thread = ThreadPoolExecutor(1, "judge")

    def put(self, new: Sequence[tuple[int, Rollout]]) -> list[Row]:
        """Take rollouts, and return the rows of those that are judged by now; what judging raised is raised here."""
        self._waiting += new
        return self._collect(wait=False)

    def rest(self) -> list[Row]:
        rows: list[Row] = []
        while self._waiting or self._running is not None:
            rows += self._collect(wait=True)
        return rows

    def _collect(self, *, wait: bool) -> list[Row]:
        rows: list[Row] = []
        if self._running is not None and (wait or self._running.done()):
            rows = self._running.result()
            self.rows += rows
            self._running = None
        if self._running is None and self._waiting:
            self._running, self._waiting = self._thread.submit(self.judge, self._waiting), []
        return rows

    def __enter__(self) -> BatchedJudge:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
