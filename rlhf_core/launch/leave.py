"""The end of a process that must not wait for its threads."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End this process without taking the interpreter down.

    A gloo thread that asks for the interpreter lock during that aborts the process, after a run that went well.
    """
    atexit._run_exitfuncs()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def was_in_group() -> bool:
    """Whether this process was one of several ranks, whose gloo threads may still run."""
    return "RANK" in os.environ and "torch.distributed" in sys.modules
