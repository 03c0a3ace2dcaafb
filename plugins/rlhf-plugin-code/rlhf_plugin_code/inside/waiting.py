"""Watches the processes of one request by the program's own time: clock time would let a busy machine make a right
program late, CPU time would let a program sleep for ever."""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_plugin_code.inside import tasks
from rlhf_plugin_code.inside.part import BEGUN, HERE
from rlhf_plugin_code.inside.tasks import Look

NOTICEABLE = 0.02
"""Share of its time that a program must have waited before the machine counts as busy."""
JITTER_S = 0.02
"""The kernel's account of what runs at this moment lags by a tick."""


class OwnClock:
    """The program's own time from its first instruction: running, and sleep while no thread is runnable. The kernel
    tells waiting only once a thread runs, so that time without running stays open until all sleep. Without /proc
    nothing is known to be its own time."""

    def __init__(self, now: float, look: Look | None) -> None:
        self.began = self.last = now
        self.waited_s = 0.0
        """Seconds that it wanted a CPU and had none."""
        self._open_s = self._doubtful_s = 0.0
        self._lost = False
        self._before = look

    def advance(self, now: float, look: Look | None) -> None:
        passed, self.last = now - self.last, now
        before, self._before = self._before, look
        if before is None or look is None:
            return
        changes = [(task, before.tasks.get(number)) for number, task in look.tasks.items()]
        ran = sum(max(0.0, task.cpu_s - (old.cpu_s if old else 0.0)) for task, old in changes)
        waited = sum(max(0.0, task.waited_s - (old.waited_s if old else 0.0)) for task, old in changes)
        self._open_s = max(-JITTER_S, self._open_s + passed - max(ran, look.cpu_s - before.cpu_s))
        waited = max(0.0, min(waited, self._open_s))
        self.waited_s += waited
        self._open_s -= waited
        self._lost |= bool(before.tasks.keys() - look.tasks.keys())
        if not any(task.runnable for task in look.tasks.values()):
            if self._lost:  # how long those waited that have ended, nobody knows any more
                self._doubtful_s += max(0.0, self._open_s)
            self._open_s, self._lost = 0.0, False

    @property
    def passed_s(self) -> float:
        return self.last - self.began

    @property
    def own_s(self) -> float:
        """Seconds that are the program's own beyond doubt."""
        if self._before is None:
            return 0.0
        busy = self.waited_s > NOTICEABLE * self.passed_s
        return self.passed_s - self.waited_s - max(0.0, self._open_s) - (self._doubtful_s if busy else 0.0)


LOOK_EVERY_S = (0.03, 0.07)
"""Drawn anew for every look, so that no program can act for it."""


class Run:
    """One program's process (or the tests' beside it) while it lasts."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.handle = os.pidfd_open(pid)
        self.report: dict[str, Any] | None = None

    def kill(self) -> None:
        """SIGKILL. In a process namespace of its own, all that it started dies with it."""
        if self.report is None:
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)

    def reap(self) -> None:
        """Wait for the end; returns when every process of the namespace is gone."""
        if self.report is None:
            _, status, used = os.wait4(self.pid, 0)
            self.report = {"code": os.waitstatus_to_exitcode(status), "peak_mb": used.ru_maxrss / 1024}
            os.close(self.handle)


class Waiting:
    """Watches a request's processes until the first ends or a limit (``own_s``, ``setup_s``, ``cap_s`` on the clock for
    each, ``total_mb``, ``processes``) is reached; ``begun`` is the line from the program's part, see :data:`BEGUN`."""

    def __init__(
        self,
        control: socket.socket,
        watch: tasks.Watch | None,
        runs: Sequence[Run],
        begun: socket.socket,
        limits: Mapping[str, Any],
    ) -> None:
        self.watch, self.runs, self.limits = watch, runs, limits
        self.control, self.signals = control.fileno(), b""
        self.line, self.descriptors = begun, list[int]()
        begun.setblocking(False)  # Python 3.11's recv_fds takes flags and does not heed them
        self.clock = OwnClock(time.monotonic(), self._look())

    @property
    def begun(self) -> bool:
        return self.signals == BEGUN

    def until_end(self) -> str:
        """Why waiting ended: ``ended``, ``time``, ``starved``, ``memory``, ``processes`` or ``asked``."""
        poll = select.poll()
        line = self.line.fileno()
        for descriptor in (self.runs[0].handle, self.control, line):
            poll.register(descriptor, select.POLLIN | select.POLLHUP)
        next_look = 0.0
        while True:
            events = {fd for fd, _ in poll.poll(max(0.0, 1000 * (next_look - time.monotonic())))}
            if line in events and not self._hear():
                poll.unregister(line)
            if self.control in events:
                return "asked"  # the next request, or the end: whoever sent this one does not wait any more
            if self.runs[0].handle in events:
                self.clock.advance(time.monotonic(), self._look())
                return "ended"
            if time.monotonic() >= next_look:
                if why := self._judge():
                    return why
                next_look = time.monotonic() + random.uniform(*LOOK_EVERY_S)

    def _hear(self) -> bool:
        """Read all that the part told; the program's clock starts. False at the end of the line."""
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self.line, 16, 1)
            except BlockingIOError:
                return True
            self.descriptors += descriptors
            if not data:
                return False
            if data == HERE:
                continue
            if not self.signals:
                self.clock = OwnClock(time.monotonic(), self._look())
            self.signals += data

    def _look(self) -> tasks.Look | None:
        return None if self.watch is None else self.watch.look()

    def _judge(self) -> str:
        """Which limit is reached; "" if none is."""
        look = self._look()
        self.clock.advance(time.monotonic(), look)
        if self.clock.own_s >= self.limits["own_s" if self.signals else "setup_s"]:
            return "time"
        if self.clock.passed_s >= self.limits["cap_s"]:
            return "starved"
        if look is not None and look.resident_mb > self.limits["total_mb"]:
            return "memory"
        if look is not None and look.processes > self.limits["processes"] + len(self.runs):
            return "processes"
        return ""
