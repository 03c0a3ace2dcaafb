"""How long work between two steps reports how far it is: training an ensemble, an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Advance = Callable[[int], None]
"""Called with how many more are done."""
ShowProgress = Callable[[str, int | None], AbstractContextManager[Advance]]
"""Name of the work, and how many there are to do where that is known.

Example:
    with session.work("evaluation", 64) as advance:
        advance(8)
"""


@contextmanager
def null_progress(name: str, total: int | None) -> Iterator[Advance]:
    """Work that nobody watches."""

    def advance(count: int) -> None:
        """Nothing is shown."""

    yield advance
