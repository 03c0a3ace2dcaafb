"""HTTP to one vLLM server; every call has a deadline."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

import httpx

from rlhf_core.config import RlhfError

KEY = "VLLM_API_KEY"
"""Environment variable with the key of servers that want one."""
CONNECT_S = 10.0
IDLE_S = 2.0
"""After so long an idle connection is not used again: the server closes it after 5 seconds, maybe at that moment."""


class ServerGone(Exception):
    """A server is dead, hangs or fails; another may answer."""


class Refused(RlhfError):
    """A server understood a request and will not do it; another would not either."""

    def __init__(self, url: str, path: str, status: int, text: str) -> None:
        self.status = status
        super().__init__(f"vLLM at {url} refused {path} ({status})", why=text)


class Connections:
    """httpx's connections to one server, all of which can be ended at once, whatever threads do with them."""

    def __init__(self, url: str, most: int) -> None:
        key = os.environ.get(KEY)
        self.http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            limits=httpx.Limits(max_connections=most, keepalive_expiry=IDLE_S),
            trust_env=False,
        )
        self._sockets: list[socket.socket] = []
        self._closed = False
        self._guard = threading.Lock()

    def note(self, name: str, info: Mapping[str, Any]) -> None:
        """Remember a socket that httpx opens; a thread uses it only after this."""
        if not name.endswith((".connect_tcp.complete", ".start_tls.complete")):
            return
        opened: socket.socket = info["return_value"].get_extra_info("socket")
        with self._guard:
            self._sockets = [s for s in self._sockets if s.fileno() >= 0] + [opened]
            if self._closed:
                _shut_down(opened)

    def close(self) -> None:
        with self._guard:
            self._closed = True
            for one in self._sockets:
                _shut_down(one)
        self.http.close()


def _shut_down(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


class Client:
    def __init__(self, url: str, connections: int = 8) -> None:
        self.url, self._most = url, connections
        self._connections = Connections(url, connections)

    def reopen(self) -> None:
        """Drop all connections. Threads that wait on them wake up at once, and the server gives their requests up."""
        self.close()
        self._connections = Connections(self.url, self._most)

    def close(self) -> None:
        self._connections.close()

    def get(self, path: str, seconds: float = 30.0) -> Any:
        return self._call("GET", path, None, seconds)

    def post(self, path: str, body: Mapping[str, Any] | None = None, seconds: float = 30.0) -> Any:
        """The JSON answer of a POST; None if it has no body."""
        return self._call("POST", path, body, seconds)

    def rpc(self, method: str, *args: str, seconds: float) -> list[Any]:
        """Call a method of the worker extension; what each worker answers."""
        answer = self.post("/collective_rpc", {"method": method, "args": list(args), "timeout": seconds}, seconds)
        return list((answer or {}).get("results", []))

    def _call(self, verb: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> Any:
        try:
            answer = self._answer(verb, path, body, seconds)
        except httpx.TimeoutException as error:
            raise ServerGone(f"{path} did not answer within {seconds:g} s") from error
        except (httpx.HTTPError, RuntimeError, OSError) as error:  # RuntimeError: closed by another thread
            raise ServerGone(f"{path}: {error or type(error).__name__}") from error
        text = answer.text[-2000:] if answer.is_error else ""
        if answer.status_code >= 500:
            raise ServerGone(f"{path} answered {answer.status_code}: {text}")
        if answer.is_error:
            raise Refused(self.url, path, answer.status_code, text)
        try:
            return answer.json() if answer.content else None
        except ValueError as error:
            if answer.headers.get("content-type", "").startswith("application/json"):
                raise ServerGone(f"{path} answered what is not JSON: {answer.text[:200]}") from error
            return None

    def _answer(self, verb: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> httpx.Response:
        """The whole answer; httpx limits silence only, so each part is timed too: twice the time at most."""
        limits = httpx.Timeout(seconds, connect=min(CONNECT_S, seconds), pool=None)
        connections, end = self._connections, time.monotonic() + seconds
        parts: list[bytes] = []
        with connections.http.stream(
            verb, path, json=body, timeout=limits, extensions={"trace": connections.note}
        ) as answer:
            for part in answer.iter_bytes():
                parts.append(part)
                if time.monotonic() > end:
                    raise httpx.ReadTimeout("late", request=answer.request)
        headers = {name: value for name, value in answer.headers.items() if name == "content-type"}
        return httpx.Response(answer.status_code, headers=headers, content=b"".join(parts))
