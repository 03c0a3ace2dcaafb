"""Output on which no text of data, models, tools or judges acts: what would control a terminal is shown escaped."""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

TEXT = frozenset("\n\t\u200c\u200d\u00ad")
"""Line feed, tab, and what Persian, emoji and hyphenation need."""
ACTING = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
"""Unicode's categories of controls, format marks (order of letters), half pairs, line and paragraph separators."""
STYLE = re.compile(r"(\x1b\[(?:[0-3]|3[0-7])m)")
"""What click writes to a terminal for bold, dim, italic and colours."""
BAR = re.compile(r"\A(?:\r(?:\x1b\[\?25l)?|\x1b\[\?25h)")
"""How progress bars begin a line again, on stderr."""


def visible(text: str) -> str:
    r"""The text with characters that act or are not seen as JSON writes them, so that JSON keeps its meaning.

    Example:
        >>> visible("\x1b]0;title\x07 \u202e")
        '\\u001b]0;title\\u0007 \\u202e'
    """
    if text.isprintable():
        return text
    text = text.replace("\r\n", "\n")
    return "".join(c if c in TEXT or unicodedata.category(c) not in ACTING else json.dumps(c)[1:-1] for c in text)


class VisibleStream:
    """A text stream that writes :func:`visible` texts; on a terminal with click's styles, and with progress bars."""

    def __init__(self, stream: Any, *, bars: bool = False) -> None:
        self._stream, self._bars = stream, bars

    def write(self, text: str) -> int:
        """Write a text, and return its length."""
        bar, pieces = "", [text]
        if self._stream.isatty():
            bar = match[0] if self._bars and (match := BAR.match(text)) else ""
            pieces = STYLE.split(text[len(bar) :])  # styles stand at odd places
        self._stream.write(bar + "".join(piece if n % 2 else visible(piece) for n, piece in enumerate(pieces)))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def visible_output() -> Generator[None, None, None]:
    """A context in which all that Python prints is :func:`visible`."""
    streams: tuple[Any, Any] = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = VisibleStream(sys.stdout), VisibleStream(sys.stderr, bars=True)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
