"""The forms in which a number may be written, and when two numbers are the same: one table for every verifier."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction
from operator import eq
from typing import NamedTuple

MAX_DIGITS = 400
"""Characters of a number, and decimal places by which an exponent moves the point; longer ones are no answer."""


class Number(NamedTuple):
    """A number as it was written.

    Example:
        >>> whole_number("-1,234.50")
        Number(value=Fraction(-2469, 2), rounded=True, percent=False, base=None)
    """

    value: Fraction
    """Exact; of ``5%`` 5."""
    rounded: bool = False
    """Whether it has a decimal point, and so may be a rounding of another."""
    percent: bool = False
    base: int | None = None
    """Of ``1010_2`` 2; the value is in that base."""


_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
_PLAIN = rf"(?>(?:{_DIGITS}(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{{1,3}}(?!\d))?)"
_POWER = r"\s*\^\s*(?>\{\s*[+-]?\d{1,3}\s*\}|[+-]?\d{1,3}(?!\d))"
_TIMES = r"\s*(?:\\times|\\cdot|[×·*⋅])\s*"
_PERCENT = r"\s?(?:\\?%|(?:percent|percentage|pct)\b)"
# Letters of scripts without spaces between words and numbers (Chinese, Japanese, Korean) may touch a number.
_TOUCHING = r"[^\W\u3005-\u30ff\u3400-\u9fff\uac00-\ud7af]"
_SIZE = (
    rf"(?:(?P<whole>\d+)\s+(?P<mixed_top>\d+)\s?/\s?(?P<mixed_bottom>\d+)"
    rf"|(?P<based>\d+)_(?:\{{(?P<base>\d{{1,2}})\}}|(?P<short_base>\d{{1,2}}))(?!\d)"
    rf"|(?P<mantissa>{_PLAIN}){_TIMES}10(?P<scale>{_POWER})"
    rf"|(?P<root>\d+)(?P<power>{_POWER})"
    rf"|(?P<top>{_PLAIN})(?:\s?/\s?(?P<bottom>{_PLAIN}))?)"
)
_CURRENCY = r"[$€£¥]\s?"
_MINUS = rf"(?P<minus>(?<!{_TOUCHING})(?<![.)\]}}])-(?=[$€£¥\d.]))?(?:{_CURRENCY}(?P<minus2>-)?)?"
# No number: what touches a word (H2O, x_2, GPT-4), an exponent, what stands under a root, a factor (2x, 3\pi).
_IN_TEXT = re.compile(
    rf"(?<![\^√\\])(?<!\d\.)(?<!\^\{{)(?<!\^-)(?<!\^\{{-)(?<![A-Z][-\u2010-\u2013]){_MINUS}(?<!{_TOUCHING})"
    rf"(?>{_SIZE})(?!\s?(?:\\sqrt|\\pi|[√π^_]))(?![xyz]\b)(?P<percent>{_PERCENT})?"
)
_ALONE = re.compile(
    rf"(?P<minus>[+-]\s?)?(?:{_CURRENCY}(?P<minus2>-)?)?(?:{_SIZE}"
    rf"|(?P<spaced>\d{{1,3}}(?:[ \u2009\u202f]\d{{3}})+(?:\.\d+)?))"
    rf"(?P<percent>{_PERCENT})?(?:\s?[€£¥])?\.?"
)
_FRAC = re.compile(r"\\[dtc]?frac(?![a-z])\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))")
_NOISE = re.compile(
    r"\\left(?![a-z])|\\right(?![a-z])|\\!|(?:\\text|\\mathrm|\\mathbf|\\textbf)\s*(?=\{)"
    r"|[*`](?!\s?\d)|(?<!\d)(?<!\d )[*`]"
    r"|(?<!\w)_{1,2}(?=[\d$])|(?<=[\d%])_{1,2}(?![\w{])"
)
_SPACE = re.compile(r"\\[,;: ]|~")
_INDEX = re.compile(r"(?<=[A-Za-z)\]}π])\s*[_^]\s*(?:\{[^{}]*\}|-?\w)")
_ROOT = re.compile(r"\\sqrt\s*(?:\[[^\]]*\])?\s*(?:\{[^{}]*\}|\d+)")


def plain(text: str) -> str:
    """A text without what LaTeX, Markdown and typography add around numbers; indices and roots go with their base."""
    text = text.replace("\u2212", "-").replace("\\$", "$").replace("\\%", "%").replace("\u00a0", " ")
    text = re.sub(r"(?<=\d)(?:\{,\}|,\\!\s?)(?=\d{3})", ",", text)
    text = re.sub(r"(?<=\d)\\,(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"[\u00bc-\u00be\u2150-\u215e]", _vulgar, _SPACE.sub(" ", text))
    text = _FRAC.sub(lambda m: f" {m[1] or m[2]}/{m[3] or m[4]}", text)
    return _NOISE.sub("", _INDEX.sub("", _ROOT.sub(r"\\sqrt", text)))


def _vulgar(match: re.Match[str]) -> str:
    part = Fraction(unicodedata.numeric(match[0])).limit_denominator(10)
    return f" {part.numerator}/{part.denominator} "


def numbers(text: str) -> list[Number]:
    """Every number of a text that :func:`plain` has gone over, in order."""
    return [n for m in _IN_TEXT.finditer(text) if (n := _number(m)) is not None]


def whole_number(text: str) -> Number | None:
    """The number that a text is, and nothing else; None for anything else, LaTeX (but of powers of ten) included.

    Example:
        >>> whole_number("3 1/2").value, whole_number("H2O"), whole_number("4 2")
        (Fraction(7, 2), None, None)
    """
    text = text.strip()
    match = _ALONE.fullmatch(text) if len(text) <= 2 * MAX_DIGITS else None
    return None if match is None else _number(match)


def _number(match: re.Match[str]) -> Number | None:
    """The number of a match; None where it divides by zero, has digits that its base lacks, or is too long."""
    parts = match.groupdict()
    if len(match[0]) > MAX_DIGITS:
        return None
    try:
        value, base = _size(parts)
    except (ZeroDivisionError, ValueError, OverflowError):
        return None
    negative = (parts["minus"] or "").startswith("-") != bool(parts["minus2"])
    written = "".join(parts.get(k) or "" for k in ("mantissa", "top", "bottom", "spaced"))
    return Number(-value if negative else value, "." in written, parts["percent"] is not None, base)


def _size(parts: dict[str, str | None]) -> tuple[Fraction, int | None]:
    if whole := parts["whole"]:
        return int(whole) + Fraction(int(parts["mixed_top"] or 0), int(parts["mixed_bottom"] or 0)), None
    if based := parts["based"]:
        base = int(parts["base"] or parts["short_base"] or 0)
        return Fraction(int(based, base)), base
    if mantissa := parts["mantissa"]:
        return _plain(mantissa) * Fraction(10) ** _exponent(parts["scale"]), None
    if root := parts["root"]:
        exponent = _exponent(parts["power"])
        if len(root) * abs(exponent) > 2 * MAX_DIGITS:
            raise OverflowError
        return Fraction(int(root)) ** exponent, None
    if spaced := parts.get("spaced"):
        return Fraction(re.sub(r"\s", "", spaced)), None
    return _plain(parts["top"] or "") / (_plain(parts["bottom"]) if parts["bottom"] else 1), None


def _exponent(power: str | None) -> int:
    exponent = int(re.sub(r"[\s^{}]", "", power or "0"))
    if abs(exponent) > MAX_DIGITS:
        raise OverflowError
    return exponent


def _plain(text: str) -> Fraction:
    mantissa, _, exponent = text.replace(",", "").lower().partition("e")
    return Fraction(mantissa) * Fraction(10) ** _exponent(exponent or "0")


def close(a: Fraction, b: Fraction, digits: int = 6) -> bool:
    r"""Whether two numbers agree in ``digits`` decimal places, and in size:
    :math:`|a - b| \le 10^{-d} / 2` and :math:`|a - b| \le 10^{-d/2} \max(|a|, |b|)`, so that 1e-7 is not 2e-7."""
    return 2 * abs(a - b) * 10**digits <= 1 and same_size(a, b, Fraction(1, 10**digits))


def same_size(a: Fraction, b: Fraction, tolerance: Fraction) -> bool:
    """Whether two numbers differ by at most the root of ``tolerance``, relative to the larger."""
    return (a - b) ** 2 <= tolerance * max(abs(a), abs(b)) ** 2


def same_number(reference: Number, stated: Number, agree: Callable[[Fraction, Fraction], bool] = close) -> bool:
    """Whether a stated number is the reference. Numbers without a decimal point are compared exactly, others by
    ``agree``. ``5%`` is 5 as well as 0.05. A reference with a base wants its own digits, and no other base."""
    if reference.base is not None:
        value = reference.value if stated.base == reference.base else _read_in(reference.base, stated)
        return value == reference.value == (stated.value if stated.base else value)
    same = agree if reference.rounded or stated.rounded else eq
    if reference.percent == stated.percent:
        return same(reference.value, stated.value)
    scale = Fraction(1, 100) if stated.percent else Fraction(100)
    return same(reference.value, stated.value) or same(reference.value, stated.value * scale)


def _read_in(base: int, number: Number) -> Fraction | None:
    """The digits of a number without a base, read in ``base``."""
    try:
        return None if number.base or number.value.denominator != 1 else Fraction(int(str(number.value), base))
    except ValueError:
        return None
