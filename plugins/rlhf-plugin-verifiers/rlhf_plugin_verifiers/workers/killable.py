"""The host of one killable process: start it, wait until it is ready, end it with everything that it started."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.config import PluginError
from rlhf_core.types.errors import DeadlineExceeded
from rlhf_plugin_verifiers.workers.codec import pack

BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {} import main; main(*map(int, sys.argv[2:]))"
"""Not ``multiprocessing``: that would import the trainer's main module, and with it torch, in every worker."""
SECRET = re.compile(r"(^|_)(KEY|TOKEN|SECRET|CREDENTIALS|PASS|PASSWD)$|PASSWORD$", re.IGNORECASE)
"""Names of variables that a worker does not inherit: it reads what a model wrote."""
EXIT_GRACE_S = 5.0
"""A SIGKILLed process is gone within milliseconds; after this long an error says that it is not."""


class KillableProcess:
    """A process in a session of its own, with one socket to it (:attr:`control`).

    ``label`` names it in errors; ``command`` is given the descriptor of its end of the socket, which is of ``kind``;
    it inherits ``descriptors`` too.
    """

    def __init__(
        self,
        label: str,
        command: Callable[[int], Sequence[str]],
        environment: Mapping[str, str],
        kind: int = socket.SOCK_STREAM,
        descriptors: Sequence[int] = (),
    ) -> None:
        self.label, self.killed = label, False
        self.control, theirs = socket.socketpair(socket.AF_UNIX, kind)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        with theirs:
            self._process = subprocess.Popen(
                command(theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                start_new_session=True,
                pass_fds=(theirs.fileno(), *descriptors),
                env=environment,
            )
        self.pid = self._process.pid

    @classmethod
    def worker(cls, label: str, module: str, spec: Mapping[str, Any]) -> KillableProcess:
        """Start ``main`` of a module; of secrets it gets those that ``spec`` names (:func:`without_secrets`)."""
        environment = {**without_secrets(os.environ, spec.get("secrets", ())), "OMP_NUM_THREADS": "1"}
        return cls(label, lambda descriptor: python_command(module, descriptor), environment)

    def ready(self, spec: Mapping[str, Any], timeout_s: float) -> tuple[dict[str, Any], list[int]]:
        """Send ``spec`` and return :meth:`announced`; DeadlineExceeded or PluginError if it is late, dies or fails."""
        deadline = time.monotonic() + timeout_s
        try:
            send(self.control, pack(spec), deadline)
            reply, descriptors = self.announced(deadline)
        except TimeoutError as error:
            raise DeadlineExceeded(f"the worker of {self.label} was not ready after {timeout_s:g} s") from error
        except (OSError, ValueError) as error:
            why = self.last_words(self.exit_code())
            raise PluginError(f"the worker of {self.label} died while starting", why=why) from error
        if "ready" not in reply:
            raise PluginError(f"{self.label} cannot be built in a worker process", why=str(reply["failed"]))
        return reply, descriptors

    def announced(self, deadline: float) -> tuple[dict[str, Any], list[int]]:
        """The next announcement, that a process is ``ready`` or has ``failed``, and the descriptor that came along."""
        reply, descriptors = receive(self.control, deadline, 1)
        if not isinstance(reply, dict) or not reply.keys() & {"ready", "failed"}:
            raise ValueError(f"the worker announced {str(reply)[:80]!r}, expected that it is ready")
        return reply, descriptors

    def exit_code(self, wait_s: float = EXIT_GRACE_S) -> int | None:
        """How the process ended, negative for a signal; None if it still runs after so many seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        return self._process.returncode

    def written(self) -> int:
        """Bytes that the process has written to its standard error."""
        return os.fstat(self._stderr.fileno()).st_size

    def output(self, start: int = 0) -> list[str]:
        """Lines that the process has written to its standard error, from a byte on; none once it is killed."""
        with contextlib.suppress(ValueError, OSError):
            return os.pread(self._stderr.fileno(), 1 << 20, start).decode(errors="replace").strip().splitlines()
        return []

    def last_words(self, code: int | None, start: int = 0) -> str:
        """How the process, or one that it forked, ended, and what it wrote: the first line of a crash, else the last
        line."""
        lines = self.output(start)
        crashed = code is not None and code < 0
        return how_ended(code) + (f": {lines[0 if crashed else -1]}" if lines else "")

    def kill(self) -> None:
        """SIGKILL the process and everything it started, and reap it; idempotent."""
        if self.killed:
            return
        self.killed = True
        sigkill(descendants(self.pid))
        self._process.kill()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.control.close()
        self._stderr.close()
        if self.exit_code() is None:
            raise DeadlineExceeded(
                f"the process {self.pid} of {self.label} still runs {EXIT_GRACE_S:g} s after SIGKILL"
            )


def python_command(module: str, descriptor: int) -> list[str]:
    """Command of a fresh interpreter that finds modules where this one does; it runs ``main(descriptor, parent)``."""
    return [sys.executable, "-c", BOOT.format(module), json.dumps(sys.path), str(descriptor), str(os.getpid())]


def send(channel: socket.socket, line: bytes, deadline: float) -> None:
    channel.settimeout(max(deadline - time.monotonic(), 1e-3))
    channel.sendall(line)


def receive(channel: socket.socket, deadline: float, descriptors: int = 0) -> tuple[Any, list[int]]:
    """The next line of JSON, and what came with it of so many descriptors."""
    data, received = b"", list[int]()
    while not data.endswith(b"\n"):
        channel.settimeout(max(deadline - time.monotonic(), 1e-3))
        chunk, more, _, _ = socket.recv_fds(channel, 1 << 16, descriptors)
        if not chunk:
            raise ConnectionResetError("the worker closed its channel")
        data, received = data + chunk, received + list(more)
    return json.loads(data), received


def how_ended(code: int | None) -> str:
    """An exit code in words; None is that of a process which may still run."""
    if code is None:
        return "closed its channel"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def without_secrets(environment: Mapping[str, str], keep: Collection[str] = ()) -> dict[str, str]:
    """The environment without keys, tokens and passwords, except those that a verifier names.

    Example:
        >>> without_secrets({"PATH": "/bin", "HF_TOKEN": "hf_1", "JUDGE_API_KEY": "k"}, keep=["JUDGE_API_KEY"])
        {'PATH': '/bin', 'JUDGE_API_KEY': 'k'}
    """
    return {name: value for name, value in environment.items() if name in keep or not SECRET.search(name)}


def sigkill(pids: Iterable[int]) -> None:
    """SIGKILL processes of which some may be gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def children() -> dict[int, list[int]]:
    """Process id -> those of its children; empty where there is no /proc."""
    below: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            below.setdefault(parent, []).append(int(stat.parent.name))
    return below


def descendants(pid: int) -> list[int]:
    """Process ids below ``pid``, deepest last; empty where there is no /proc (the process group is killed anyway)."""
    below, pids, queue = children(), list[int](), [pid]
    while queue:
        more = below.get(queue.pop(), [])
        pids += more
        queue += more
    return pids
