"""Where the steps of a solution begin and end; plain text in, character offsets out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

Split = Literal["newline", "blank_line", "step_n", "sentence"]
ENDS: dict[Split, re.Pattern[str]] = {
    "newline": re.compile(r"\n+"),
    "blank_line": re.compile(r"\n[^\S\n]*\n\s*"),
    "step_n": re.compile(r"\n(?=[^\S\n]*[*#]*[^\S\n]*step[^\S\n]+\d+\b)", re.IGNORECASE),
    "sentence": re.compile(r"(?<=[.!?])[\"')\]]*(?:\s+|$)|\n+"),
}
"""What lies between two steps. A sentence's closing quotes belong to it, a decimal point ends none."""
JOINS: dict[Split, str] = {"newline": "\n", "blank_line": "\n\n", "step_n": "\n", "sentence": " "}
"""What separates steps that are given one by one."""


class Step(NamedTuple):
    """Characters ``text[start:end]``, without white space around them."""

    start: int
    end: int


def split_steps(text: str, how: Split) -> list[Step]:
    r"""Steps of a text, in order; none of a blank one. What is between two steps is white space only."""
    cuts = [0, *(m.end() for m in ENDS[how].finditer(text)), len(text)]
    pieces = (_trimmed(text, a, b) for a, b in pairwise(cuts))
    return [p for p in pieces if p.start < p.end]


def joined(steps: Sequence[str], how: Split) -> tuple[str, list[Step]]:
    r"""One text of given steps, and where each stands in it, whatever line breaks a step has inside."""
    text, spans = "", list[Step]()
    for step in steps:
        text += JOINS[how] if text else ""
        spans.append(_trimmed(text + step, len(text), len(text) + len(step)))
        text += step
    return text, spans


def _trimmed(text: str, start: int, end: int) -> Step:
    piece = text[start:end]
    return Step(start + len(piece) - len(piece.lstrip()), start + max(len(piece.rstrip()), 0))


def token_positions(steps: Sequence[Step], offsets: Sequence[tuple[int, int]]) -> list[int]:
    """Index of the token that holds the last character of each step."""
    positions: list[int] = []
    at = 0
    for step in steps:
        while at < len(offsets) and offsets[at][1] < step.end:
            at += 1
        if at == len(offsets):
            raise ValueError(f"no token reaches character {step.end}, where a step ends")
        positions.append(at)
    return positions
