"""Forks a confined process for every program (a few milliseconds, where an interpreter takes fifty), and kills it when
it is late or too large. File descriptors are handed through, so that no text of a program is in its memory."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rlhf_plugin_code.inside import confinement, kernel, landlock, seccomp, tasks
from rlhf_plugin_code.inside.part import hand_over, work
from rlhf_plugin_code.inside.waiting import Run, Waiting

PRELOADED = Path(__file__).with_name("preloaded.txt").read_text().split()
"""What programs usually import; paid once."""
MESSAGE_BYTES = 1 << 16
ASIDE = 100
"""Descriptors from here on are out of the way of those that a part is given."""


class Zygote:
    """Serves one request at a time."""

    def __init__(self, control: socket.socket, isolated: bool, watch: tasks.Watch | None) -> None:
        self.control, self.isolated, self.watch = control, isolated, watch
        self.elsewhere = confinement.elsewhere() if isolated else -1
        self.landlock = landlock.abi() if isolated else 0
        self.filter = seccomp.program() if isolated else b""
        self.folder: tempfile.TemporaryDirectory[str] | None = None

    def serve(self) -> None:
        while True:
            data, descriptors, _, _ = socket.recv_fds(self.control, MESSAGE_BYTES, 16)
            if not data:
                return
            reply = self.answer(json.loads(data), descriptors)
            say(self.control, reply)

    def answer(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> dict[str, Any]:
        """Start the processes of a request, wait for the first of them, kill the others."""
        started, oom_kills = time.monotonic(), self._oom_kills()
        runs: list[Run] = []
        if not self.isolated:
            self._fresh_folder()
        begun, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            for part in request["parts"]:
                runs.append(self._start(part, [*descriptors, theirs.fileno()], request["limits"]))
            theirs.close()
            for descriptor in descriptors:
                os.close(descriptor)
            waiting = Waiting(self.control, self.watch, runs, begun, request["limits"])
            why = waiting.until_end()
        finally:
            for run in runs:
                run.kill()
            for run in runs:
                run.reap()
            if not self.isolated:
                self._sweep()
            begun.close()
        for descriptor in waiting.descriptors:
            os.close(descriptor)
        return {
            "why": why,
            "begun": waiting.begun,
            "oom": self._oom_kills() > oom_kills,
            "parts": [run.report for run in runs],
            "id": request["id"],
            "seconds": time.monotonic() - started,
            "own_s": waiting.clock.own_s,
        }

    def _oom_kills(self) -> int:
        return 0 if self.watch is None else self.watch.oom_kills()

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
            hides = part["role"] != "harness" and self.elsewhere >= 0
            moved = [os.dup2(d, ASIDE + 1 + i) for i, d in enumerate(descriptors)]
            if hides:
                os.dup2(self.elsewhere, ASIDE)
            for i, descriptor in enumerate(moved):
                os.dup2(descriptor, i, inheritable=i < 3)
            line = len(descriptors) - 1
            os.closerange(line + 1, ASIDE)
            os.closerange(ASIDE + hides, 1 << 16)
            os.environ.clear()
            os.environ.update(ENVIRONMENT)
            with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
                file.write("1000")  # when memory runs out, a program goes first
            own_limits = {**limits, "isolated": self.isolated}
            if part["role"] == "harness":
                own_limits["file_kb"] = limits["verdicts_kb"]  # the tests' side, however little the program may write
            hide: Callable[[], object] = bool
            if hides:
                hide = functools.partial(confinement.hide_mounts, ASIDE, functools.partial(hand_over, line))
            confinement.confine(own_limits, self.landlock, self.filter, self.isolated, hide)
            code = work(part["role"], line)
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


def main(descriptor: int, parent: int) -> None:
    """Confine this process and serve; report how programs are isolated, or why they cannot be. Settings come over the
    socket and this package through a descriptor, so that nothing names a folder of the host."""
    control = socket.socket(fileno=descriptor)
    settings = json.loads(control.recv(MESSAGE_BYTES << 4))
    tie(parent)
    kernel.hide_arguments()
    sys.executable, sys.argv, sys.orig_argv = settings["executable"], ["python3"], ["python3"]
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
            say(control, {"failed": f"{error}"})
            os._exit(0)
    else:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    sys.path[:] = settings["import_paths"]
    ENVIRONMENT["PATH"] = settings["path"]
    isolated = settings["isolated"]
    del settings
    zygote = Zygote(control, isolated, tasks.watch(inner, outer))
    gc.collect()
    gc.freeze()
    gc.disable()
    mounts = inner and zygote.elsewhere < 0
    say(control, {"ready": {"landlock": zygote.landlock, "proc": zygote.watch is not None, "mounts": mounts}})
    zygote.serve()


def say(control: socket.socket, message: Mapping[str, Any]) -> None:
    """One message, which is one line of JSON, as the host of processes reads it."""
    control.send(json.dumps(message).encode() + b"\n")


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
