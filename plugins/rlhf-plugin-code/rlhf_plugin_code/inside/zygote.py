"""Forks a confined process for every program, waits for it, and kills it when it is late or too large.

A fork of an interpreter that is already up costs a few milliseconds where a new one costs fifty. This process reads no
program: it hands file descriptors through, so that no program finds another one's text in its memory.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from rlhf_plugin_code.inside import confinement, guest, harness, kernel, landlock, seccomp, tasks
from rlhf_plugin_code.inside.clock import OwnClock

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
LOOK_EVERY_S = (0.03, 0.07)
"""Drawn anew for every look, so that no program can act for it."""
MESSAGE_BYTES = 1 << 16
BEGUN, FAILED = b"1", b"x"
"""What a part tells before the program's first instruction, and when a command could not be run after all."""


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
    """Looks after the processes of one request until the first of them ends or a limit is reached.

    Args:
        zygote: has the line to the trusted side and the view of all processes.
        runs: the processes.
        begun: pipe from the part that runs the program, see :data:`BEGUN`.
        limits: ``own_s`` and ``setup_s`` of own time, ``cap_s`` on the clock for each of both, ``total_mb``,
            ``processes``.
    """

    def __init__(self, zygote: Zygote, runs: Sequence[Run], begun: int, limits: Mapping[str, Any]) -> None:
        self.watch, self.runs, self.limits = zygote.watch, runs, limits
        self.control, self.told = zygote.control.fileno(), b""
        self._begun = begun
        self.clock = OwnClock(time.monotonic(), self._look())

    @property
    def begun(self) -> bool:
        """Whether the program's first instruction came."""
        return self.told == BEGUN

    def until_end(self) -> str:
        """Why waiting ended: ``ended``, ``time``, ``starved``, ``memory``, ``processes`` or ``asked``."""
        poll = select.poll()
        for descriptor in (self.runs[0].handle, self.control, self._begun):
            poll.register(descriptor, select.POLLIN | select.POLLHUP)
        next_look = 0.0
        while True:
            events = {fd for fd, _ in poll.poll(max(0.0, 1000 * (next_look - time.monotonic())))}
            if self._begun in events and not self._hear():
                poll.unregister(self._begun)
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
        """Read what the part told; the program's clock starts. False at the end of the line."""
        data = os.read(self._begun, 16)
        if data and not self.told:
            self.clock = OwnClock(time.monotonic(), self._look())
        self.told += data
        return bool(data)

    def _look(self) -> tasks.Look | None:
        return None if self.watch is None else self.watch.look()

    def _judge(self) -> str:
        """Which limit is reached; "" if none is."""
        look = self._look()
        self.clock.advance(time.monotonic(), look)
        if self.clock.own_s >= self.limits["own_s" if self.told else "setup_s"]:
            return "time"
        if self.clock.passed_s >= self.limits["cap_s"]:
            return "starved"
        if look is not None and look.resident_mb > self.limits["total_mb"]:
            return "memory"
        if look is not None and look.processes > self.limits["processes"] + len(self.runs):
            return "processes"
        return ""


class Zygote:
    """Serves one request at a time.

    Args:
        control: socket to the trusted side.
        isolated: False only where the user allowed execution without isolation.
        watch: of the programs' processes; None where there is no /proc.
    """

    def __init__(self, control: socket.socket, isolated: bool, watch: tasks.Watch | None) -> None:
        self.control, self.isolated, self.watch = control, isolated, watch
        self.landlock = landlock.abi() if isolated else 0
        self.filter = seccomp.program() if isolated else b""
        self.folder: tempfile.TemporaryDirectory[str] | None = None

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
        begun, tell_begun = os.pipe()
        try:
            for part in request["parts"]:
                runs.append(self._start(part, [*descriptors, tell_begun], request["limits"]))
            for descriptor in (*descriptors, tell_begun):
                os.close(descriptor)
            waiting = Waiting(self, runs, begun, request["limits"])
            why = waiting.until_end()
        finally:
            for run in runs:
                run.kill()
            for run in runs:
                run.reap()
            if not self.isolated:
                self._sweep()
            os.close(begun)
        return {
            "why": why,
            "begun": waiting.begun,
            "parts": [run.report for run in runs],
            "id": request["id"],
            "seconds": time.monotonic() - started,
            "own_s": waiting.clock.own_s,
        }

    def _start(self, part: Mapping[str, Any], descriptors: Sequence[int], limits: Mapping[str, Any]) -> Run:
        pid = kernel.clone(confinement.OWN) if self.isolated else os.fork()
        if pid == 0:
            # the last descriptor tells that the program begins; the tests' side has none
            begins = [descriptors[-1]] if part["role"] != "harness" else []
            self._become(part, [*(descriptors[i] for i in part["fds"]), *begins], limits)
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
            code = work(part["role"], len(descriptors) - 1)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode(errors="replace"))
        finally:
            os._exit(code)

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


def work(role: str, begins: int) -> int:
    """In the confined child. Descriptor 3 is the job; further ones depend on the role.

    Args:
        role: which part this is.
        begins: descriptor that is told that the program begins, and closed before it does; the tests' side has none.
    """
    with open(3, "rb", closefd=True) as file:
        job = json.load(file)
    reopen_streams()
    gc.unfreeze()
    gc.enable()
    for name, text in job.get("files", {}).items():
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        with open(name, "w") as file:
            file.write(text)
    if role == "harness":
        return guest.finish(lambda: harness.judge(job, 4, harness.teller(5)))
    if role == "command":
        run_command(job["command"], begins)
    begin = functools.partial(tell_begun, begins)
    if role == "guest":
        return guest.finish(lambda: guest.answer_tests(job, 4, begin))
    begin()
    return guest.finish(lambda: guest.run_script(job))


def tell_begun(descriptor: int) -> None:
    """The program's first instruction comes next."""
    os.write(descriptor, BEGUN)
    os.close(descriptor)


def run_command(command: Sequence[str], begins: int) -> NoReturn:
    """Become another program; where that cannot be, it was not the program's fault, and it never began."""
    os.set_inheritable(begins, False)
    os.write(begins, BEGUN)
    try:
        os.execvpe(command[0], list(command), dict(os.environ))
    except BaseException:
        os.write(begins, FAILED)
        raise


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
    outer, inner = outer_proc(), False
    for name in PRELOADED:
        importlib.import_module(name)
    if settings["isolated"]:
        try:
            confinement.unshare_with_maps()
            first = os.fork()
            if first:
                control.close()
                os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) & 0xFF)
            inner = confinement.build_root(settings["readable"], settings["hidden"])
            kernel.drop_bounding_set()
        except OSError as error:
            control.send(json.dumps({"refused": f"{error}"}).encode())
            os._exit(0)
    else:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    sys.path[:] = settings["import_paths"]
    ENVIRONMENT["PATH"] = settings["path"]
    zygote = Zygote(control, settings["isolated"], tasks.watch(inner, outer))
    gc.collect()
    gc.freeze()
    gc.disable()
    control.send(json.dumps({"ready": {"landlock": zygote.landlock, "proc": zygote.watch is not None}}).encode())
    zygote.serve()


def outer_proc() -> int | None:
    """The machine's /proc; programs get no descriptor of it."""
    try:
        return os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None


def tie(parent: int) -> None:
    """Die with the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
