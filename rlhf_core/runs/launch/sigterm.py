"""SIGTERM, which schedulers and `kill` send, ends a run as Ctrl-C does: step, checkpoint, page, exit code 130."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM like SIGINT; a caller's own handler stays, and so does everything outside of the main thread."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    try:
        signal.signal(signal.SIGTERM, _interrupt)
    except ValueError:  # not the main thread, to which no signal comes
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # a script that begins a run with `&` has it ignored
        raise KeyboardInterrupt
    handler(number, frame)
