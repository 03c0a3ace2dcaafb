"""Stop strings over token boundaries, without decoding whole completions at every token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MARGIN = 8
"""Tokens decoded beyond the longest stop string, so that a decoder's treatment of a text's start cannot matter."""


class StopStrings:
    """Detects that the newest token completes a stop string.

    Args:
        tokenizer: decodes tokens.
        stop: the strings; empty ones are ignored.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.stop = tuple(s for s in stop if s)
        self.window = max((len(s.encode()) for s in self.stop), default=0) + MARGIN
        self.last_characters = {s[-1] for s in self.stop}
        self._may_end: dict[int, bool] = {}

    def __bool__(self) -> bool:
        """False when there is nothing to look for."""
        return bool(self.stop)

    def completed_by_last(self, tokens: Sequence[int]) -> bool:
        """True when the last token brings a stop string to its end; one that ended earlier does not count.

        A token covers at least one byte of text, so the last ``len(stop in bytes) + 8`` tokens are enough.
        """
        if not tokens or not self._can_end(tokens[-1]):
            return False
        tail = list(tokens[-self.window :])
        text, before = self.tokenizer.decode(tail), self.tokenizer.decode(tail[:-1])
        fresh = next((i for i, (a, b) in enumerate(zip(before, text)) if a != b), min(len(before), len(text)))
        return any(text.find(s, max(0, fresh - len(s) + 1)) >= 0 for s in self.stop)

    def _can_end(self, token: int) -> bool:
        """Could this token hold a stop string's last character? Almost all cannot, and need no decoding.

        Decoded twice over, because some decoders strip the space of a text's first token; part of a multi-byte
        character shows up as U+FFFD.
        """
        known = self._may_end.get(token)
        if known is None:
            text = self.tokenizer.decode([token, token])
            known = "�" in text or any(c in text for c in self.last_characters)
            self._may_end[token] = known
        return known
