"""The end of a process that must not wait for its threads."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End this process without taking the interpreter down.

    A thread that asks for the interpreter lock during that, from inside torch or gloo, aborts the process ("terminate
    called without an active exception", code 134), after a run that went well or whatever its error was.
    """
    atexit._run_exitfuncs()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def has_to_leave() -> bool:
    """Whether a thread may be inside torch or gloo: this process was one of several ranks, or a daemon thread still
    runs, such as a rollout worker that could not be cancelled in time. The interpreter waits for any other thread."""
    if "RANK" in os.environ and "torch.distributed" in sys.modules:
        return True
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    return "torch" in sys.modules and bool(others) and all(thread.daemon for thread in others)
