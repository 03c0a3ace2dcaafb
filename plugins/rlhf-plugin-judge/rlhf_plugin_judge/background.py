"""An event loop in a thread of its own, started when first needed, so that ``ask`` may be called from anywhere."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results of coroutines that run at the same time, in order; the first that raises ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def end_others() -> None:
    """Cancel all other tasks of this loop and wait for them."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Background:
    """Runs coroutines for plain callers. A process that was forked off starts a loop of its own."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid, self._lock = 0, threading.Lock()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine's result; it is cancelled if the wait is interrupted (Ctrl-C)."""
        future = asyncio.run_coroutine_threadsafe(work, self._started())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancel what still runs, then stop the loop and its thread; idempotent."""
        with self._lock:
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is None or thread is None or self._pid != os.getpid():
            return
        with suppress(TimeoutError):  # else whoever waits in run() would wait for ever
            asyncio.run_coroutine_threadsafe(end_others(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=10)
        loop.close()

    @property
    def running(self) -> bool:
        return self._loop is not None and self._pid == os.getpid()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                self._thread = threading.Thread(target=self._loop.run_forever, name="rlhf-judge", daemon=True)
                self._thread.start()
            return self._loop
