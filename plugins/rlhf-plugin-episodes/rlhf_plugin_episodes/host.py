"""The trainer's side of the processes of environments: open one per episode, ask many at once, kill what is late."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
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
from rlhf_plugin_verifiers.workers import KillableProcess, descendants, how_ended, pack, receive, send, sigkill

MAX_REPLY = 64 << 20
"""Bytes of one answer; our own side of the process cuts results, so that more means it is broken."""


@dataclass(frozen=True, slots=True)
class Reply:
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
        starting = self._thread.submit(KillableProcess.worker, label, "rlhf_plugin_episodes.server", self.spec)
        self.process = starting.result()
        self._finalizer = weakref.finalize(self, _stop, self.process, self._thread)
        try:
            self.process.ready(self.spec, start_timeout_s)
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
        sigkill(descendants(process.pid))
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
            deadline = time.monotonic() + self.start_timeout_s
            send(process.channel, pack({**self.spec, "alone": True}), deadline)
            announced, _ = receive(process.channel, deadline)
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
            send(process.channel, pack(pending.message), pending.due)
        except (OSError, TypeError, ValueError) as error:
            self.died += 1
            code = self.end(process)
            return Reply(status=TurnStatus.ERROR, detail=f"{self.label} {how_ended(code)}: {error}", alive=False)
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
            detail = f"{self.label} {how_ended(code)} in {pending.message['op']}"
            return Reply(status=TurnStatus.ERROR, detail=detail, alive=False, seconds=seconds)
        if "contract" in answer:
            raise PluginError(
                f"{self.label}: {answer['contract']}",
                fix="fix the environment (rlhf_testing.check_environment has the checks), or choose another",
            )
        if "error" in answer:
            return Reply(status=TurnStatus.ERROR, detail=str(answer["error"]), seconds=seconds)
        return Reply(answer.get("value"), seconds=seconds)

    def _control(self, message: Mapping[str, Any]) -> tuple[dict[str, Any], list[int]]:
        with self._lock:
            deadline = time.monotonic() + self.start_timeout_s
            send(self.process.control, pack(message), deadline)
            return receive(self.process.control, deadline, 1)

    def close(self) -> None:
        """Kill every process; idempotent, and called at exit if forgotten."""
        self._finalizer()


def _stop(process: KillableProcess, thread: ThreadPoolExecutor) -> None:
    try:
        process.kill()
    finally:
        thread.shutdown(wait=True)
