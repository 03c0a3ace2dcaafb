"""One process trains the ensemble, the others wait: for as long as it gets on, however long that takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhf_core.api import DeadlineExceeded, ModelError

POLL_S = 0.1


def trained(folder: Path) -> bool:
    """True if the ensemble is there; it appears as a whole."""
    return (folder / "ensemble.json").is_file()


def beat_file(folder: Path) -> Path:
    """The file beside an ensemble's folder that is touched while it is being trained."""
    return folder.with_name(f"{folder.name}.training")


@contextmanager
def beating(folder: Path) -> Iterator[Callable[[], None]]:
    """Yield what to call after every bit of progress.

    Raises:
        ModelError: the cache cannot be written; found before anything is trained.
    """
    file = beat_file(folder)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    except OSError as error:
        raise ModelError(
            f"no place for the trained ensemble: {error.strerror}",
            where=str(file.parent),
            fix="set RLHF_CACHE to a folder that can be written",
        ) from error
    try:
        yield file.touch
    finally:
        file.unlink(missing_ok=True)


def wait_for(folder: Path, limit_s: float) -> None:
    """Wait until another process has trained the ensemble in ``folder``.

    Raises:
        DeadlineExceeded: for ``limit_s`` seconds there was no progress.
    """
    file, last_stamp, since = beat_file(folder), 0, time.monotonic()
    while not trained(folder):
        stamp = changed(file)
        if stamp != last_stamp:
            last_stamp, since = stamp, time.monotonic()
        if time.monotonic() - since > limit_s:
            raise DeadlineExceeded(
                f"waited {limit_s:.0f} s without a sign of progress for rank 0 training the reward ensemble",
                where=str(folder),
                why="its file was not touched" if last_stamp else f"{file.name} is not there",
                fix="look at rank 0's log; all processes must see one $RLHF_CACHE; raise reward.stall_timeout_s if a "
                "single update takes longer",
            )
        time.sleep(POLL_S)


def changed(file: Path) -> int:
    """When a file was last touched, ns by its own clock; 0 if it is not there."""
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
