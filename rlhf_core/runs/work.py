"""How a run shows itself: lines, steps, and how far long work between two steps is (an ensemble, an evaluation)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

log = logging.getLogger("rlhf")
Progress = Callable[[int, int | None, Mapping[str, float]], None]
"""Step, steps in all where known, metrics."""
Advance = Callable[[int], None]
ShowProgress = Callable[[str, int | None], AbstractContextManager[Advance]]
"""Name of the work, and how many there are to do where that is known.

Example:
    with session.work("evaluation", 64) as advance:
        advance(8)
"""


@contextmanager
def null_progress(name: str, total: int | None) -> Generator[Advance, None, None]:
    """Work that nobody watches."""
    yield lambda count: None


class Display(NamedTuple):
    """Where a run shows itself; by default its lines are logged, and nothing else is shown."""

    say: Callable[[str], None] = log.info
    progress: Progress = lambda step, total, metrics: None
    work: ShowProgress = null_progress
