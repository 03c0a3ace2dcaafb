"""The place of an ensemble in the cache: rank 0 writes it, and every process has to see it there."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from rlhf_core.config import DeadlineExceeded
from rlhf_core.models import ModelError

POLL_S = 0.1


def trained(folder: Path) -> bool:
    """True if the ensemble is there; it appears as a whole."""
    return (folder / "ensemble.json").is_file()


def check_place(folder: Path) -> None:
    """Refuse a cache that cannot be written, before anything is trained."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder.parent):
            pass
    except OSError as error:
        raise ModelError(
            f"no place for the trained ensemble: {error.strerror}",
            where=str(folder.parent),
            fix="set RLHF_CACHE to a folder that can be written",
        ) from error


def wait_for(folder: Path, limit_s: float) -> None:
    """Wait until this process sees an ensemble that rank 0 has written, or found."""
    since = time.monotonic()
    while not trained(folder):
        if time.monotonic() - since > limit_s:
            raise DeadlineExceeded(
                f"this process does not see, after {limit_s:.0f} s, the reward ensemble that rank 0 sees",
                where=str(folder),
                why="the cache is not one folder for all processes, or its file system shows what is new late",
                fix="set RLHF_CACHE to a folder that all machines share; raise reward.stall_timeout_s",
            )
        time.sleep(POLL_S)
