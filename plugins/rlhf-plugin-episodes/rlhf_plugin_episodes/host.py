"""The trainer's side of the processes of environments: open one per episode, ask many at once, kill what is late."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from rlhf_core.config import PluginError
from rlhf_core.rollouts import TurnStatus
from rlhf_core.types.errors import DeadlineExceeded
from rlhf_plugin_episodes.server import BOOT
from rlhf_plugin_verifiers.workers import EXIT_GRACE_S, descendants, pack, without_secrets

MAX_REPLY = 64 << 20
"""Bytes of one answer; our own side of the process cuts results, so that more means it is broken."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of a request."""

    value: Any = None
    status: TurnStatus = TurnStatus.OK
    """``error`` if the environment raised or its process died, ``timeout`` if it was killed."""
    detail: str = ""
    alive: bool = True
    seconds: float = 0.0


@dataclass(eq=False)
class EpisodeProcess:
    """One episode's process; opened by the first request, and anew by the first one after it was killed."""

    pid: int = 0
    channel: socket.socket | None = None
    buffer: bytearray = field(default_factory=bytearray)


@dataclass(eq=False)
class _Pending:
    index: int
    process: EpisodeProcess
    message: Mapping[str, Any]
    timeout_s: float
    began: float = 0.0

    @property
    def due(self) -> float:
        return self.began + self.timeout_s


class EnvironmentHost:
    """Holds the process that builds the environment, and asks those that it forks, ``parallel`` at a time."""

    def __init__(self, spec: Mapping[str, Any], label: str, parallel: int, start_timeout_s: float) -> None:
        self.spec, self.label, self.parallel, self.start_timeout_s = dict(spec), label, parallel, start_timeout_s
        self.killed = self.died = 0
        self._lock = threading.Lock()
        # A process dies with the thread that started it, so that one thread lives as long as the host.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="environment")
        self._opened: dict[str, Any] = {}
        self._finalizer = weakref.finalize(self, _stop, self._opened, self._thread)
        try:
            self._thread.submit(self._start).result()
        except BaseException:
            self.close()
            raise

    def ask(self, requests: Sequence[tuple[EpisodeProcess, Mapping[str, Any], float]]) -> list[Reply]:
        """One reply per (process, message, seconds), in order; what is late is killed with all that it started."""
        with selectors.DefaultSelector() as selector:
            waiting = deque(_Pending(n, *request) for n, request in enumerate(requests))
            replies: dict[int, Reply] = {}
            active: set[_Pending] = set()
            while waiting or active:
                while waiting and len(active) < self.parallel:
                    pending = waiting.popleft()
                    failed = self._send(pending)
                    if failed is not None:
                        replies[pending.index] = failed
                        continue
                    active.add(pending)
                    selector.register(pending.process.channel, selectors.EVENT_READ, pending)  # pyright: ignore[reportArgumentType]
                if not active:
                    continue
                due = min(pending.due for pending in active)
                for key, _ in selector.select(max(due - time.monotonic(), 0)):
                    reply = self._receive(key.data, lambda p: selector.unregister(p.channel))
                    if reply is not None:
                        replies[key.data.index] = reply
                        active.discard(key.data)
                now = time.monotonic()
                for pending in [p for p in active if p.due <= now]:
                    selector.unregister(pending.process.channel)  # pyright: ignore[reportArgumentType]
                    active.discard(pending)
                    self.killed += 1
                    self.end(pending.process)
                    late = f"{self.label} did not answer {pending.message['op']} in {pending.timeout_s:g} s"
                    replies[pending.index] = Reply(
                        status=TurnStatus.TIMEOUT, detail=late, alive=False, seconds=now - pending.began
                    )
            return [replies[n] for n in range(len(requests))]

    def end(self, process: EpisodeProcess) -> int | None:
        """SIGKILL an episode's process and everything below it; return how it had ended."""
        if not process.pid:
            return None
        for pid in descendants(process.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if process.channel is not None:
            process.channel.close()
        pid, process.pid, process.channel = process.pid, 0, None
        process.buffer.clear()
        try:
            return self._control({"ended": pid})[0].get("code")
        except OSError:
            return None

    def release(self, processes: Sequence[EpisodeProcess]) -> None:
        """Let processes that have answered end by themselves, and kill what they left behind."""
        released = [process for process in processes if process.channel is not None]
        for process in released:
            assert process.channel is not None
            process.channel.close()
            process.pid, process.channel = 0, None
        if released:
            with contextlib.suppress(OSError):
                self._control({"ended": 0})

    def _open(self, process: EpisodeProcess) -> None:
        reply, descriptors = self._control({"open": True})
        process.pid, process.channel = int(reply["pid"]), socket.socket(fileno=descriptors[0])
        process.buffer.clear()
        if reply["alone"]:
            process.channel.settimeout(self.start_timeout_s)
            process.channel.sendall(pack({**self.spec, "alone": True}))
            while not process.buffer.endswith(b"\n"):
                data = process.channel.recv(1 << 16)
                if not data:
                    raise ConnectionResetError("its process ended while starting")
                process.buffer += data
            announced = json.loads(bytes(process.buffer))
            process.buffer.clear()
            if "ready" not in announced:
                raise ConnectionResetError(str(announced.get("failed")))

    def _send(self, pending: _Pending) -> Reply | None:
        """Send a request; a reply only if it could not be sent."""
        process, pending.began = pending.process, time.monotonic()
        try:
            if process.channel is None:
                self._open(process)
                pending.began = time.monotonic()
            assert process.channel is not None
            process.channel.settimeout(pending.timeout_s)
            process.channel.sendall(pack(pending.message))
        except (OSError, TypeError, ValueError) as error:
            self.died += 1
            code = self.end(process)
            return Reply(status=TurnStatus.ERROR, detail=f"{self.label} {_how(code)}: {error}", alive=False)
        return None

    def _receive(self, pending: _Pending, unregister: Any) -> Reply | None:
        """What has come of an answer; None while it is not whole."""
        process = pending.process
        assert process.channel is not None
        try:
            data = process.channel.recv(1 << 18)
        except OSError:
            data = b""
        process.buffer += data
        seconds = time.monotonic() - pending.began
        if data and not process.buffer.endswith(b"\n") and len(process.buffer) <= MAX_REPLY:
            return None
        unregister(process)
        answer: Any = None
        with contextlib.suppress(ValueError):
            answer = json.loads(bytes(process.buffer)) if process.buffer.endswith(b"\n") else None
        process.buffer.clear()
        if not isinstance(answer, dict):
            self.died += 1
            code = self.end(process)
            detail = f"{self.label} {_how(code)} in {pending.message['op']}"
            return Reply(status=TurnStatus.ERROR, detail=detail, alive=False, seconds=seconds)
        if "contract" in answer:
            raise PluginError(
                f"{self.label}: {answer['contract']}",
                fix="fix the environment (rlhf_testing.check_environment has the checks), or choose another",
            )
        if "error" in answer:
            return Reply(status=TurnStatus.ERROR, detail=str(answer["error"]), seconds=seconds)
        return Reply(answer.get("value"), seconds=seconds)

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        stderr = tempfile.TemporaryFile()  # noqa: SIM115
        command = [sys.executable, "-c", BOOT, json.dumps(sys.path), str(theirs.fileno()), str(os.getpid())]
        with theirs:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
                env={**without_secrets(os.environ, self.spec.get("secrets", ())), "OMP_NUM_THREADS": "1"},
            )
        self._opened.update(process=process, control=ours, stderr=stderr)
        ours.settimeout(self.start_timeout_s)
        try:
            ours.sendall(pack(self.spec))
            reply, _ = self._read()
        except TimeoutError as error:
            raise DeadlineExceeded(f"{self.label} was not ready after {self.start_timeout_s:g} s") from error
        except (OSError, ValueError) as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(EXIT_GRACE_S)
            lines = os.pread(stderr.fileno(), 1 << 20, 0).decode(errors="replace").strip().splitlines()
            raise PluginError(
                f"the worker of {self.label} died while starting", why=lines[-1] if lines else str(error)
            ) from error
        if "ready" not in reply:
            raise PluginError(f"{self.label} cannot be built in a worker process", why=str(reply.get("failed")))

    def _control(self, message: Mapping[str, Any]) -> tuple[dict[str, Any], list[int]]:
        with self._lock:
            control = self._opened["control"]
            control.settimeout(self.start_timeout_s)
            control.sendall(pack(message))
            return self._read()

    def _read(self) -> tuple[dict[str, Any], list[int]]:
        data, descriptors = b"", list[int]()
        while not data.endswith(b"\n"):
            chunk, received, _, _ = socket.recv_fds(self._opened["control"], 1 << 16, 1)
            if not chunk:
                raise ConnectionResetError("the worker closed its channel")
            data, descriptors = data + chunk, descriptors + list(received)
        return json.loads(data), descriptors

    def close(self) -> None:
        """Kill every process; idempotent, and called at exit if forgotten."""
        self._finalizer()


def _how(code: int | None) -> str:
    if code is None:
        return "closed its channel"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _stop(opened: dict[str, Any], thread: ThreadPoolExecutor) -> None:
    process = opened.pop("process", None)
    if process is not None:
        for pid in (*descendants(process.pid), process.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        opened.pop("control").close()
        opened.pop("stderr").close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(EXIT_GRACE_S)
    thread.shutdown(wait=True)
