"""Compares the number that a completion states with the reference answer."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from rlhf_core.rewards import Sample, Score, ScoreStatus

if TYPE_CHECKING:
    from rlhf_plugin_verifiers.reward_config import NumericVerifierConfig


MAX_DIGITS = 200
"""Longer numbers are no answer; reading them exactly would only cost time."""

_PLAIN = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][+-]?\d{1,2}(?!\d))?|\.\d+"
# Between a Chinese, Japanese or Korean word and a number there is no space, so a dash there is a sign.
_NUMBER = re.compile(
    r"(?P<minus>(?<![^\W\u3005-\u30ff\u3400-\u9fff\uac00-\ud7af])(?<![.)\]}])-(?=[$€£\d.]))?(?:[$€£]\s?(?P<minus2>-)?)?"
    rf"(?:(?P<whole>\d+)\s+(?P<mixed_top>\d+)/(?P<mixed_bottom>\d+)|(?P<top>{_PLAIN})(?:\s?/\s?(?P<bottom>{_PLAIN}))?)"
)
_FRAC = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_NOISE = re.compile(r"\\[,;:! ]|\\left|\\right|\\text\s*|\\mathrm\s*|[*`]")
# Only the start of a statement is consumed, so that a later one on the same line is found too.
_STATED = re.compile(r"\\boxed\s*\{|####|\banswer\b[^\n.=:]{0,40}?(?:\bis\b|[:=])\s*", re.IGNORECASE)
# After #### only a number with at most a unit counts: "#### 2. Next step" is a Markdown heading.
_AFTER_HASH = re.compile(r"\s*(?!\d+\.\s+\w)[-$€£]*[\d.][\d.,/ ]*%?(?:\s?[A-Za-z]+)?\.?\s*")
TAIL = 200
"""Characters after "the answer is" in which the number is looked for."""


class Stated(NamedTuple):
    """The number that a text states; ``explicit`` if it marks it as the answer."""

    value: Fraction
    explicit: bool


def stated_number(text: str) -> Stated | None:
    """Find the answer in a text, None if it holds no number."""
    text = plain(text)
    for match in reversed(list(_STATED.finditer(text))):
        values = numbers(_tail(match[0], text[match.end() : match.end() + TAIL].partition("\n")[0]))
        if values:
            return Stated(values[0], True)
    values = numbers(text)
    return Stated(values[-1], False) if values else None


def _tail(statement: str, tail: str) -> str:
    """The part of what follows a statement that may hold its number."""
    if statement.startswith("\\"):
        return _inside(tail)
    if statement == "####" and not _AFTER_HASH.fullmatch(tail):
        return ""
    return tail.rpartition("=")[2]


def plain(text: str) -> str:
    """Remove what LaTeX, Markdown and typography add around numbers."""
    text = text.replace("\u2212", "-").replace("\\$", "$").replace("\\%", "%").replace("\u00a0", " ")
    text = re.sub(r"(?<=\d)\{,\}(?=\d)", ",", text)
    text = _FRAC.sub(r" \1/\2", text)
    return _NOISE.sub("", text)


def _inside(text: str) -> str:
    """Text up to the brace that closes the one already open."""
    depth = 1
    for index, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return text[:index]
    return text


def find_numbers(text: str) -> list[Fraction]:
    """Every number of a text, in order, whatever LaTeX, Markdown or typography put around it."""
    return numbers(plain(text))


def numbers(text: str) -> list[Fraction]:
    values = [_value(m) for m in _NUMBER.finditer(text) if len(m[0]) <= MAX_DIGITS]
    return [v for v in values if v is not None]


def _value(match: re.Match[str]) -> Fraction | None:
    try:
        if match["whole"]:
            size = int(match["whole"]) + Fraction(int(match["mixed_top"]), int(match["mixed_bottom"]))
        else:
            size = _plain(match["top"]) / (_plain(match["bottom"]) if match["bottom"] else 1)
    except ZeroDivisionError:
        return None
    return -size if match["minus"] or match["minus2"] else size


def _plain(text: str) -> Fraction:
    return Fraction(text.replace(",", ""))


class NumericVerifier:
    """1.0 if the stated number equals the reference answer, else 0.0; see :class:`NumericVerifierConfig`."""

    def __init__(self, config: NumericVerifierConfig) -> None:
        self.config = config

    def verify(self, sample: Sample) -> Score:
        answer = sample.prompt.answer
        if answer is None:
            return Score.failed(ScoreStatus.MISSING, f"prompt {sample.prompt.id} has no reference answer")
        gold = stated_number(answer)
        if gold is None:
            return Score.failed(ScoreStatus.MISSING, f"the reference answer {answer[:60]!r} holds no number")
        stated = stated_number(sample.completion)
        right = stated is not None and self.equal(stated.value, gold.value)
        parts = {"answer": float(right), "format": float(stated is not None and stated.explicit)}
        weight = self.config.format_weight
        detail = "no number in the completion" if stated is None else f"stated {float_text(stated.value)}"
        return Score((1 - weight) * parts["answer"] + weight * parts["format"], parts, detail=detail)

    def equal(self, a: Fraction, b: Fraction) -> bool:
        """Whether two numbers are the same up to the tolerance."""
        return abs(a - b) <= Fraction(self.config.tolerance) * max(1, abs(b))


def float_text(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.6g}"
