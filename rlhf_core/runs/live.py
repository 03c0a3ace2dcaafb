"""Whether a process is working on a run: while one is, it holds a lock on the run's folder, which ends with it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from rlhf_core.types.errors import RunDirError

TRIES = 20
"""A reader holds the lock for an instant; only a run holds it for longer."""
PAUSE_S = 0.05


@contextlib.contextmanager
def held_by_this_process(folder: Path) -> Iterator[None]:
    """Hold the lock of a run's folder; without effect where the file system has none.

    Raises:
        RunDirError: another process works on the run, or another thread of this one.
    """
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        for n in range(TRIES):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if n + 1 == TRIES:
                    raise RunDirError(
                        f"'{folder}' is being trained by another process",
                        why="two processes would overwrite each other's files",
                        fix=f"wait until it has ended, or end it with: touch {folder / 'stop'}",
                    ) from error
                time.sleep(PAUSE_S)
            except OSError:  # no locks on this file system
                break
        yield
    finally:
        os.close(handle)


def is_live(folder: Path) -> bool | None:
    """True while a process works on the run, False if none does, None where that cannot be known."""
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(handle)
