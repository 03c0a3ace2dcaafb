"""Compares the number that a completion states with the reference answer."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_plugin_verifiers.graded import why_refused
from rlhf_plugin_verifiers.maths.text import after_reasoning, closing_brace, plain_digits
from rlhf_plugin_verifiers.number_forms import MAX_DIGITS, Number, numbers, plain, same_number, same_size, whole_number

if TYPE_CHECKING:
    from rlhf_plugin_verifiers.reward_config import NumericVerifierConfig


# Only the start of a statement is consumed, so that a later one on the same line is found too.
_STATED = re.compile(r"\\(?:boxed|fbox)\s*\{|####|\banswer\b[^\n.=:]{0,40}?(?:\bis\b|[:=])\s*", re.IGNORECASE)
# After #### only a number with at most a unit counts: "#### 2. Next step" is a Markdown heading.
_AFTER_HASH = re.compile(r"\s*(?!\d+\.\s+\w)[-$€£]*[\d.][\d.,/ ]*%?(?:\s?[A-Za-z]+)?\.?\s*")
TAIL = 200
"""Characters after "the answer is" in which the number is looked for."""


BOX = 2 * MAX_DIGITS
"""Characters of a box; a longer one holds no number."""


class FinalAnswer(NamedTuple):
    """The number that a text states; ``explicit`` if it marks it as the answer."""

    number: Number
    explicit: bool

    @property
    def value(self) -> Fraction:
        return self.number.value


def final_number(text: str) -> FinalAnswer | None:
    """Find the answer in a text, None if it holds no number, or if its last box holds none, or several."""
    text = plain(text)
    for match in reversed(list(_STATED.finditer(text))):
        tail = text[match.end() : match.end() + (BOX if match[0].startswith("\\") else TAIL)]
        values = numbers(_tail(match[0], tail))
        if match[0].startswith("\\"):
            return FinalAnswer(values[0], True) if len(values) == 1 else None
        if values:
            return FinalAnswer(values[0], True)
    values = numbers(text)
    return FinalAnswer(values[-1], False) if values else None


def _tail(statement: str, tail: str) -> str:
    """The part of what follows a statement that may hold its number."""
    if statement.startswith("\\"):
        return _boxed(tail)
    tail = tail.partition("\n")[0]
    if statement == "####" and not _AFTER_HASH.fullmatch(tail):
        return ""
    return tail.rpartition("=")[2]


def _boxed(tail: str) -> str:
    """What a box holds; of an equation the last side, and nothing where another side is a different number."""
    *sides, last = _inside(tail).split("=")
    known = [n for side in sides if (n := whole_number(side.strip(" $"))) is not None]
    value = whole_number(last.strip(" $"))
    return "" if any(value is None or not same_number(value, n) for n in known) else last


def _inside(text: str) -> str:
    """Text up to the brace that closes the one already open; nothing where it stays open."""
    end = closing_brace(text, 0)
    return "" if end is None else text[:end]


def find_numbers(text: str) -> list[Number]:
    """Every number of a text, in order, whatever LaTeX, Markdown or typography put around it."""
    return numbers(plain(text))


def reference_number(text: str) -> Number | None:
    """The number that a reference answer is: the number alone, or a GSM8K solution that ends with ``#### X``."""
    return whole_number(plain_digits(text).rpartition("####")[2])


def why_no_number(text: str) -> str | None:
    """Why a reference answer is not one number, in a sentence; None if it is."""
    if reference_number(text) is not None:
        return None
    return f"the reference answer {text[:60]!r} is not a number alone, such as 72, -1,234.5, 3/4 or #### 72"


class NumericVerifier:
    """1.0 if the stated number equals the reference answer, else 0.0; see :class:`NumericVerifierConfig`."""

    def __init__(self, config: NumericVerifierConfig) -> None:
        self.config = config

    def verify(self, sample: Sample) -> Score:
        why = why_refused(self.config, sample.prompt)
        gold = reference_number(str(sample.prompt.answer))
        if why is not None or gold is None:
            return Score.failed(ScoreStatus.MISSING, str(why))
        stated = final_number(plain_digits(after_reasoning(sample.completion)))
        right = stated is not None and same_number(gold, stated.number, self.equal)
        parts = {"answer": float(right), "format": float(stated is not None and stated.explicit)}
        weight = self.config.format_weight
        detail = "no number in the completion" if stated is None else f"stated {float_text(stated.value)}"
        return Score((1 - weight) * parts["answer"] + weight * parts["format"], parts, detail=detail)

    def equal(self, a: Fraction, b: Fraction) -> bool:
        """Whether two numbers are the same up to the tolerance."""
        tolerance = Fraction(str(self.config.tolerance))
        return abs(a - b) <= tolerance * max(1, abs(b)) and same_size(a, b, tolerance)


def float_text(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{Decimal(value.numerator) / value.denominator:.6g}"
