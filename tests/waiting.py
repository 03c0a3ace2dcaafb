"""The one place where tests wait for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def wait_for(condition: Callable[[], object], what: str, within_s: float = 90) -> None:
    """Return as soon as the condition holds; the test fails if it never does."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {within_s:g} s"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
