"""Serves until Ctrl-C, on this machine only, for who has the token; only a site with ``post(path, body)`` takes
data."""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import re
import secrets
import signal
import sys
import time
import webbrowser
from collections.abc import Callable, Generator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any, Protocol
from urllib.parse import parse_qs

from rlhf_core.config import UserError
from rlhf_plugin_dashboard.site import Answer, Site, text

NICE = 10
"""Runs on the same cores go first."""


def serve(folder: Path, port: int, opens: bool, say: Callable[[str], object]) -> None:
    """Serve until Ctrl-C or SIGTERM; port 0 takes a free one."""
    serve_site(Site(folder), port, opens, say, "dashboard", "nothing was written")


def serve_site(site: Pages, port: int, opens: bool, say: Callable[[str], object], what: str, end: str) -> None:
    """Serve any site until Ctrl-C or SIGTERM: ``what`` names it in a word, ``end`` is said when it is over."""
    with Dashboard(site, port) as server, _ended_by_sigterm():
        say(f"{what}: {server.url}")
        say("only this machine can reach it, with the token in the address; Ctrl-C ends it")
        if hasattr(os, "nice"):
            with contextlib.suppress(OSError):
                os.nice(NICE)
        if opens and _has_screen():
            with contextlib.suppress(webbrowser.Error):
                webbrowser.open(server.opening_url)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            say(f"\nended; {end}")


def _has_screen() -> bool:
    """A browser in a terminal would take it over."""
    if sys.platform in ("darwin", "win32"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


@contextlib.contextmanager
def _ended_by_sigterm() -> Generator[None, None, None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


log = logging.getLogger("rlhf.dashboard")

HERE = "127.0.0.1"
NAMES = re.compile(r"(127\.0\.0\.1|localhost)(:\d{1,5})?", re.IGNORECASE)
"""Hosts that a request may ask for. The port may be another's: of an SSH tunnel."""
OPENED_WITHIN_S = 60.0
MOST_POSTED = 65_536
"""Bytes of what a page sends."""


class Pages(Protocol):
    """What is served. One with a method ``post(path, body)``, which returns an :class:`Answer`, takes JSON as well."""

    command: str
    """What printed the address."""

    def answer(self, path: str, query: Any) -> Answer: ...


class Dashboard(ThreadingHTTPServer):
    """Serves a site at ``http://127.0.0.1:PORT/TOKEN/``; port 0 takes a free one."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, site: Pages, port: int) -> None:
        self.site = site
        self.token = secrets.token_urlsafe(24)
        self._once = secrets.token_urlsafe(24)
        self._opened_until = time.monotonic() + OPENED_WITHIN_S
        try:
            super().__init__((HERE, port), Handler)
        except OSError as error:
            raise UserError(
                f"port {port} cannot be used",
                why=f"{error.strerror}; perhaps another dashboard has it",
                fix="--port 0 takes a free one",
            ) from error

    @property
    def url(self) -> str:
        """Where the dashboard is; who has it may read the runs."""
        return f"http://{HERE}:{self.server_port}/{self.token}/"

    @property
    def opening_url(self) -> str:
        """Leads to :attr:`url` once, for a browser's command line, which everybody on the machine can see."""
        return f"http://{HERE}:{self.server_port}/{self._once}/"

    def is_token(self, text: str) -> bool:
        """In time that does not depend on where they differ."""
        return hmac.compare_digest(text.encode(), self.token.encode())

    def open_once(self, text: str) -> bool:
        """True for the first one who comes with the opening address in its first minute."""
        right = hmac.compare_digest(text.encode(), self._once.encode()) and time.monotonic() < self._opened_until
        if right:
            self._opened_until = 0.0
        return right

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            log.exception("a request failed")


class Handler(BaseHTTPRequestHandler):
    server: Dashboard  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "rlhf-dashboard", ""
    timeout = 60

    def answer(self) -> None:
        address, _, query = self.path.partition("?")
        token, _, path = address.removeprefix("/").partition("/")
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not NAMES.fullmatch(hosts[0].strip()):
            self.send(text("this dashboard answers to 127.0.0.1 and localhost only", HTTPStatus.FORBIDDEN))
        elif self.server.open_once(token):
            self.send(Answer(b"", "text/plain", HTTPStatus.FOUND), Location=self.server.url)
        elif not self.server.is_token(token):
            why = f"the token is missing or wrong: use the whole address that `{self.server.site.command}` printed"
            self.send(text(why, HTTPStatus.FORBIDDEN))
        elif self.command == "POST" and hasattr(self.server.site, "post"):
            self.send(self.posted(path))
        elif self.command not in ("GET", "HEAD"):
            self.send(text("the dashboard only reads", HTTPStatus.METHOD_NOT_ALLOWED), Allow="GET, HEAD")
        elif address == f"/{token}":
            self.send(Answer(b"", "text/plain", HTTPStatus.FOUND), Location=f"/{token}/")
        else:
            self.send(self.answer_of(path, query))

    def answer_of(self, path: str, query: str) -> Answer:
        """The site's answer; what goes wrong in it is logged here and told there."""
        try:
            return self.server.site.answer(path, parse_qs(query, max_num_fields=50))
        except Exception as error:  # one run's files must not end the dashboard
            log.exception("'%s' could not be answered", path)
            return text(f"{type(error).__name__}: {error}", HTTPStatus.INTERNAL_SERVER_ERROR)

    def posted(self, path: str) -> Answer:
        """The site's answer to JSON that one of its own pages sent."""
        origin, length = self.headers.get("Origin", ""), self.headers.get("Content-Length", "")
        if origin.partition("://")[2] != self.headers.get("Host") or self.headers.get("Sec-Fetch-Site") not in (
            None,
            "same-origin",
        ):
            return text("only the site's own pages may send something", HTTPStatus.FORBIDDEN)
        if not length.isdecimal() or int(length) > MOST_POSTED:
            return text(f"at most {MOST_POSTED} bytes may be sent", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        body = self.rfile.read(int(length))
        try:
            return self.server.site.post(path, body)  # pyright: ignore[reportAttributeAccessIssue]
        except Exception as error:
            log.exception("what was sent to '%s' could not be taken", path)
            return text(f"{type(error).__name__}: {error}", HTTPStatus.INTERNAL_SERVER_ERROR)

    def send(self, answer: Answer, **headers: str) -> None:
        """Write it, with what a browser must not do."""
        self.send_response(answer.status)
        fixed = {
            "Content-Type": f"{answer.kind}; charset=utf-8",
            "Content-Length": str(len(answer.body)),
            "Content-Security-Policy": answer.policy,
            "Cache-Control": "private, max-age=3600" if answer.keep else "no-store",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
        }
        if answer.status >= HTTPStatus.BAD_REQUEST:
            fixed["Connection"] = "close"  # the body of what was refused is not read
        for key, value in {**fixed, **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Addresses hold the token: they are not logged."""


METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")
_answer: Callable[[Handler], None] = Handler.answer
for _method in METHODS:
    setattr(Handler, f"do_{_method}", _answer)
