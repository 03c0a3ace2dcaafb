"""The end of a process: by SIGTERM, with the one that started it, or without waiting for its threads."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Generator
from types import FrameType
from typing import NoReturn

PR_SET_PDEATHSIG = 1


def hard_exit(code: int) -> NoReturn:
    """End this process without taking the interpreter down.

    A thread that asks for the interpreter lock during that, from inside torch or gloo, aborts the process ("terminate
    called without an active exception", code 134), after a run that went well or whatever its error was.
    """
    atexit._run_exitfuncs()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def needs_hard_exit() -> bool:
    """Whether a thread may be inside torch or gloo: this process was one of several ranks, or a daemon thread still
    runs, such as a rollout worker that could not be cancelled in time. The interpreter waits for any other thread."""
    if "RANK" in os.environ and "torch.distributed" in sys.modules:
        return True
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    return "torch" in sys.modules and bool(others) and all(thread.daemon for thread in others)


def die_with_parent() -> None:
    """End this process at once when the one that started it is killed (Linux)."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


@contextlib.contextmanager
def sigterm_as_interrupt() -> Generator[None, None, None]:
    """Treat SIGTERM, which schedulers and `kill` send, like SIGINT: step, checkpoint, page, exit code 130.

    A caller's own handler stays, and so does everything outside of the main thread.
    """
    with contextlib.ExitStack() as stack:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            with contextlib.suppress(ValueError):  # not the main thread, to which no signal comes
                signal.signal(signal.SIGTERM, _interrupt)
                stack.callback(signal.signal, signal.SIGTERM, signal.SIG_DFL)
        yield


def _interrupt(number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # a script that begins a run with `&` has it ignored
        raise KeyboardInterrupt
    handler(number, frame)
