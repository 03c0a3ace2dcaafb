"""In a worker, once its component is built: fork the processes that answer, and clean up behind them."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable

from rlhf_plugin_verifiers.workers.killable import children, descendants, sigkill

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


class ForkServer:
    """Forks processes that ``serve`` on a channel of their own, notes how they ended, and kills what they leave.

    What building the component has started, such as a sandbox, belongs to this process and stays. A process that
    answers holds its own channel only: what it forks, or a stray write, cannot speak for this one on ``control``.
    """

    def __init__(self, control: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        gc.collect()
        gc.freeze()
        self.control, self.serve = control, serve
        self.live = set[int]()
        self._started_before, self._codes = set(own_children()), dict[int, int]()

    def fork(self, theirs: socket.socket, ours: socket.socket) -> int:
        """Process id of one that serves ``ours``; ``theirs`` is the other end."""
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            theirs.close()
            self.control.close()
            tie_to_parent(parent)
            self.serve(ours)
            os._exit(0)
        self.live.add(pid)
        return pid

    def end(self, pid: int) -> int | None:
        """Wait for one of :attr:`live` and kill what it left; its exit code, None if it never was one."""
        if pid in self.live:
            with contextlib.suppress(ChildProcessError):
                self._note(*os.waitpid(pid, 0))
            self.live.discard(pid)
        self.sweep()
        return self._codes.pop(pid, None)

    def reap(self) -> None:
        """Note which processes have ended, and kill what they left, which came to this process."""
        ended = False
        with contextlib.suppress(ChildProcessError):
            while (each := os.waitpid(-1, os.WNOHANG))[0]:
                self._note(*each)
                ended = True
        if ended:
            self.sweep()

    def sweep(self) -> None:
        """Kill what ended processes have left behind, which came to this process as a subreaper."""
        while left := set(own_children()) - self.live - self._started_before:
            for pid in left:
                sigkill((*descendants(pid), pid))
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def _note(self, pid: int, status: int) -> None:
        if pid in self.live:
            self.live.discard(pid)
            self._codes[pid] = os.waitstatus_to_exitcode(status)


def own_children() -> list[int]:
    return children().get(os.getpid(), [])


def forks_safely() -> bool:
    """Whether this process may be forked: Linux, and no library has started a thread."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def tie_to_parent(parent: int) -> None:
    """On Linux: die with the process that started this one, and adopt what this one's own children leave behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)
