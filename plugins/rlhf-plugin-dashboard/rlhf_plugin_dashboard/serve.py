"""Serving until Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from rlhf_plugin_dashboard.server import Dashboard, Pages
from rlhf_plugin_dashboard.site import Site

NICE = 10
"""Runs on the same cores go first."""


def serve(folder: Path, port: int, opens: bool, say: Callable[[str], object]) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Args:
        folder: of runs, or one run.
        port: 0 takes a free one.
        opens: whether to open a browser, where there is a screen.
        say: is given lines for the user.

    Raises:
        UserError: the port cannot be used.
    """
    serve_site(Site(folder), port, opens, say, "dashboard", "nothing was written")


def serve_site(site: Pages, port: int, opens: bool, say: Callable[[str], object], what: str, end: str) -> None:
    """Serve any site until Ctrl-C or SIGTERM.

    Args:
        site: what is served.
        port: 0 takes a free one.
        opens: whether to open a browser, where there is a screen.
        say: is given lines for the user.
        what: it is, in a word.
        end: what is said when it is over.

    Raises:
        UserError: the port cannot be used.
    """
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
def _ended_by_sigterm() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
