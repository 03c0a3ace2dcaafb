"""What the device records: where the host waits for it, copies to it, or computes in its place."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, Literal, NamedTuple

Kind = Literal["wait", "copy", "product"]


class Event(NamedTuple):
    """What the device records. ``where`` is the innermost line of this toolkit, ``inside`` that of a library under it,
    if there is one."""

    kind: Kind
    operation: str
    where: str
    inside: str
    within: tuple[str, ...] = ()
    """The functions of this toolkit that were running, innermost first: ``Learner.update``."""

    def line(self) -> str:
        """For people."""
        return f"{self.kind} {self.operation} {self.where}" + (f" ({self.inside})" if self.inside else "")


class Recorder:
    """The events since the last :meth:`take`."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.on = True

    def add(self, kind: Kind, operation: Any) -> None:
        """Record one, at the line that is running."""
        if self.on:
            self.events.append(Event(kind, str(operation).removesuffix(".default"), *_lines(sys._getframe(2))))

    def take(self) -> list[Event]:
        """The events so far, which are forgotten."""
        events, self.events = self.events, []
        return events


RECORDER = Recorder()


def _lines(frame: FrameType | None) -> tuple[str, str, tuple[str, ...]]:
    where = inside = ""
    within: list[str] = []
    while frame is not None:
        code = frame.f_code
        if "/rlhf_" in code.co_filename:
            root = "/rlhf_core/" if "/rlhf_core/" in code.co_filename else "/rlhf_"
            where = where or f"{code.co_filename[code.co_filename.rindex(root) + 1 :]}:{frame.f_lineno}"
            within.append(code.co_qualname)
        elif not where and not inside and not any(one in code.co_filename for one in ("/shadow_cuda/", "/torch/")):
            inside = f"{code.co_filename.rsplit('/site-packages/')[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    return where or "?", inside, tuple(within)


def table(events: Sequence[Event]) -> list[tuple[int, str]]:
    """How often each line made each event, most often first."""
    counts: dict[str, int] = {}
    for event in events:
        counts[event.line()] = counts.get(event.line(), 0) + 1
    return sorted(((count, line) for line, count in counts.items()), reverse=True)
