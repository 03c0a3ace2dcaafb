"""Forks a confined process for every program, waits for it, and kills it when it is late or too large.

A fork of an interpreter that is already up costs a few milliseconds where a new one costs fifty. This process reads no
program: it hands file descriptors through, so that no program finds another one's text in its memory.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from rlhf_plugin_code.inside import confinement, guest, harness, kernel, landlock, seccomp

PRELOADED = (
    "bisect",
    "collections",
    "copy",
    "cmath",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "fractions",
    "functools",
    "heapq",
    "itertools",
    "json",
    "math",
    "operator",
    "queue",
    "random",
    "re",
    "statistics",
    "string",
    "threading",
    "time",
    "traceback",
    "typing",
)
"""What programs usually import; paid once."""
LOOK_EVERY_S = 0.05
PAGE = os.sysconf("SC_PAGE_SIZE")
MESSAGE_BYTES = 1 << 16


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


class Zygote:
    """Serves one request at a time.

    Args:
        control: socket to the trusted side.
        isolated: False only where the user allowed execution without isolation.
    """

    def __init__(self, control: socket.socket, isolated: bool) -> None:
        self.control, self.isolated = control, isolated
        self.landlock = landlock.abi() if isolated else 0
        self.filter = seccomp.program() if isolated else b""
        self.folder: tempfile.TemporaryDirectory[str] | None = None
        self.watches = os.path.exists("/proc/self/statm")
        self.own_pages = self._pages(os.getpid())

    def serve(self) -> None:
        """Until the trusted side hangs up."""
        while True:
            data, descriptors, _, _ = socket.recv_fds(self.control, MESSAGE_BYTES, 16)
            if not data:
                return
            reply = self.answer(json.loads(data), descriptors)
            self.control.send(json.dumps(reply).encode())

    def answer(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> dict[str, Any]:
        """Start the processes of a request, wait for the first of them, kill the others."""
        started = time.monotonic()
        runs: list[Run] = []
        if not self.isolated:
            self._fresh_folder()
        try:
            for part in request["parts"]:
                runs.append(self._start(part, descriptors, request["limits"]))
            for descriptor in descriptors:
                os.close(descriptor)
            why = self._wait(runs, started + request["limits"]["wall_s"], request["limits"])
        finally:
            for run in runs:
                run.kill()
            for run in runs:
                run.reap()
            if not self.isolated:
                self._sweep()
        return {
            "why": why,
            "parts": [run.report for run in runs],
            "id": request["id"],
            "seconds": time.monotonic() - started,
        }

    def _start(self, part: Mapping[str, Any], descriptors: Sequence[int], limits: Mapping[str, Any]) -> Run:
        pid = kernel.clone(confinement.OWN) if self.isolated else os.fork()
        if pid == 0:
            self._become(part, [descriptors[i] for i in part["fds"]], limits)
        return Run(pid)

    def _become(self, part: Mapping[str, Any], descriptors: Sequence[int], limits: Mapping[str, Any]) -> NoReturn:
        """In the child: keep the given descriptors as 0, 1, 2 ..., give up everything else, and work."""
        code = 125
        try:
            moved = [os.dup2(d, 100 + i) for i, d in enumerate(descriptors)]
            for i, descriptor in enumerate(moved):
                os.dup2(descriptor, i, inheritable=i < 3)
            os.closerange(len(descriptors), 1 << 16)
            os.environ.clear()
            os.environ.update(ENVIRONMENT)
            with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
                file.write("1000")  # when memory runs out, a program goes first
            own_limits = {**limits, "isolated": self.isolated}
            if part["role"] == "harness":
                own_limits["file_kb"] = limits["verdicts_kb"]  # the tests' side, however little the program may write
            confinement.confine(own_limits, self.landlock, self.filter, self.isolated)
            code = work(part["role"])
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode(errors="replace"))
        finally:
            os._exit(code)

    def _wait(self, runs: Sequence[Run], deadline: float, limits: Mapping[str, Any]) -> str:
        poll = select.poll()
        poll.register(runs[0].handle, select.POLLIN)
        poll.register(self.control, select.POLLIN | select.POLLHUP)
        look = time.monotonic() + LOOK_EVERY_S
        while True:
            now = time.monotonic()
            if now >= deadline:
                return "time"
            if now >= look:
                look = now + LOOK_EVERY_S
                pids = self._pids()
                if sum(max(0, self._pages(p) - self.own_pages) for p in pids) * PAGE / 2**20 > limits["total_mb"]:
                    return "memory"
                if len(pids) > limits["processes"] + len(runs):
                    return "processes"
            events = poll.poll(max(1, 1000 * (min(deadline, look) - now)))
            if any(fd == self.control.fileno() for fd, _ in events):
                return "asked"  # the next request, or the end: whoever sent this one does not wait any more
            if events:
                return "ended"

    def _pids(self) -> list[int]:
        """Processes of all programs; their memory counts as far as they do not share it with this one."""
        if not self.watches or not self.isolated:
            return []
        zygote = os.getpid()
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != zygote]

    def _pages(self, pid: int) -> int:
        try:
            with open(f"/proc/{pid}/statm") as file:
                return int(file.read().split()[1])
        except (OSError, IndexError):
            return 0

    def _fresh_folder(self) -> None:
        """Without a private /tmp: an empty folder to work in."""
        os.chdir("/")
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # the one before is removed
        os.chdir(self.folder.name)

    def _sweep(self) -> None:
        """Without process namespaces: kill what came to this process as a subreaper."""
        children_file = f"/proc/self/task/{os.getpid()}/children"
        while True:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            try:
                with open(children_file) as file:
                    children_left = [int(p) for p in file.read().split()]
            except OSError:
                return
            if not children_left:
                return
            for pid in children_left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def work(role: str) -> int:
    """In the confined child. Descriptor 3 is the job; further ones depend on the role."""
    with open(3, "rb", closefd=True) as file:
        job = json.load(file)
    reopen_streams()
    gc.unfreeze()
    gc.enable()
    for name, text in job.get("files", {}).items():
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        with open(name, "w") as file:
            file.write(text)
    if role == "guest":
        return guest.finish(lambda: guest.answer_tests(job, 4))
    if role == "harness":
        return guest.finish(lambda: harness.judge(job, 4, harness.teller(5)))
    if role == "command":
        os.execvpe(job["command"][0], job["command"], dict(os.environ))
    return guest.finish(lambda: guest.run_script(job))


def reopen_streams() -> None:
    """Fresh buffers on 0, 1 and 2."""
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr


def main(descriptor: int, parent: int, settings: Mapping[str, Any]) -> None:
    """Confine this process and serve. Reports to the trusted side how programs are isolated, or why they cannot be."""
    control = socket.socket(fileno=descriptor)
    tie(parent)
    for name in PRELOADED:
        importlib.import_module(name)
    if settings["isolated"]:
        try:
            confinement.unshare_with_maps()
            inner = os.fork()
            if inner:
                control.close()
                os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) & 0xFF)
            confinement.build_root(settings["readable"], settings["hidden"])
            kernel.drop_bounding_set()
        except OSError as error:
            control.send(json.dumps({"refused": f"{error}"}).encode())
            os._exit(0)
    else:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    sys.path[:] = settings["import_paths"]
    ENVIRONMENT["PATH"] = settings["path"]
    zygote = Zygote(control, settings["isolated"])
    gc.collect()
    gc.freeze()
    gc.disable()
    control.send(json.dumps({"ready": {"landlock": zygote.landlock, "proc": zygote.watches}}).encode())
    zygote.serve()


def tie(parent: int) -> None:
    """Die with the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
