"""Units behind a number: two answers with units are the same quantity, or not the same answer."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from rlhf_plugin_verifiers.maths.text import canonical, unwrapped
from rlhf_plugin_verifiers.number_forms import Number, plain, same_number, whole_number

MAX_LENGTH = 200
"""Characters; a longer answer is no quantity."""
_UNITS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_OF = {
    name: (kind, Fraction(size))
    for kind, sizes in _UNITS.items()
    for size, names in sizes.items()
    for name in names.split()
}
"""Unit -> what it measures, and its size."""
_BASES = {"volume": {"length": 3}, "area": {"length": 2}, "speed": {"length": 1, "time": -1}}
_NAME = "|".join(rf"(?i:{n})" if len(n) > 3 else n for n in sorted(map(re.escape, _OF), key=len, reverse=True))
_POWER = r"(?:\s*\^\s*(?:\{\s*[123]\s*\}|[123])|[²³]|\s+(?:squared|cubed))"
_ONE = rf"(?:(?:sq(?:uare|\.)?|cu(?:bic|\.)?)\s+)?(?:{_NAME}){_POWER}?"
_QUANTITY = re.compile(rf"(?s)(?P<number>.*(?:[\d)}}\]]|pi|lion|sand))\s*(?P<unit>{_ONE}(?:\s*(?:/|per)\s*{_ONE})?)\.?")
_DEGREE = re.compile(r"(?:\^?\s*(?:\{\s*\\circ\s*\}|\\circ|°)|\s*\bdegrees?)\s*(?=[CF]\b|(?i:celsius|fahrenheit))")
_INVERSE = re.compile(rf"(?<=[A-Za-z])(?:\s|\\cdot|\\,|·)*\b({_NAME})\s*\^\s*\{{?\s*-\s*([123])\s*\}}?")
_DOLLARS = re.compile(r"(-?)(?:\\\$|\$(?!.*\$))\s*(-?[\d.,{}]*\d(?:\s*(?i:million|billion))?)", re.DOTALL)
_SUM = re.compile(rf"(?P<before>.*{_ONE})(?:\s|,|and\b)+(?P<rest>[\d./ ]+)", re.DOTALL)


class Quantity(NamedTuple):
    number: str
    dimensions: tuple[tuple[str, int], ...]
    """What is measured and its power. Example: ``(("length", 1), ("time", -1))``"""
    factor: Fraction
    """Of the unit, in metres, grams, seconds, months, cents."""


def quantity(latex: str) -> Quantity | None:
    """The quantity that an answer is; None for an answer without a known unit.

    Example:
        >>> quantity(r"2\\text{ cm}")
        Quantity(number='2', dimensions=(('length', 1),), factor=Fraction(1, 100))
    """
    if len(latex) > MAX_LENGTH:
        return None
    latex = unwrapped(_INVERSE.sub(r"/\1^\2", _DOLLARS.sub(r"\1\2 dollars", latex.strip())))
    match = _QUANTITY.fullmatch(_INVERSE.sub(r"/\1^\2", _DEGREE.sub("°", latex)))
    if match is None:
        return None
    powers: dict[str, int] = {}
    factor = Fraction(1)
    for sign, part in zip((1, -1), re.split(r"/|\bper\b", match["unit"])):
        kind, size, power = _read(part)
        factor *= size ** (sign * power)
        for base, exponent in _BASES.get(kind, {kind: 1}).items():
            powers[base] = powers.get(base, 0) + sign * power * exponent
    return Quantity(match["number"].strip(), tuple(sorted(p for p in powers.items() if p[1])), factor)


def _read(part: str) -> tuple[str, Fraction, int]:
    """(What is measured, factor, power) of ``square feet``, ``cm^3``."""
    word, _, rest = part.strip().partition(" ")
    power = {"sq": 2, "cu": 3}.get(word[:2], 1) if rest and word.lower().startswith(("sq", "cu")) else 1
    name = re.match(_NAME, (rest if power > 1 else part).strip())
    assert name is not None, "the pattern has matched it"
    kind, size = _OF.get(name[0]) or _OF[name[0].lower()]
    written = re.search(r"[23²³]|squared|cubed", part)
    return kind, size, power if written is None else {"2": 2, "²": 2, "squared": 2}.get(written[0], 3)


def same_quantity(gold: str, stated: str, agree: Callable[[Fraction, Fraction], bool]) -> bool | None:
    """Whether two answers with units are the same quantity; None where one has no unit, or the number behind equal
    units is not written plainly: the unit then says nothing."""
    ours, theirs = quantity(gold), quantity(stated)
    if ours is None or theirs is None:
        return None
    if ours.dimensions != theirs.dimensions:
        return False
    numbers = [_value(q) for q in (ours, theirs)]
    if numbers[0] is None or numbers[1] is None:
        return None if ours.factor == theirs.factor else False
    return same_number(numbers[0], _scaled(numbers[1], theirs.factor / ours.factor), agree)


def _value(read: Quantity) -> Number | None:
    """The number of a quantity, in its unit: also of ``2 hours 30`` (minutes), and of ``5 million`` (dollars)."""
    parts, inside = _SUM.fullmatch(read.number), quantity(read.number)
    before = quantity(parts["before"]) if parts else None
    if parts and before and before.dimensions == read.dimensions:
        whole, rest = _value(before), whole_number(parts["rest"])
        added = _scaled(whole, before.factor / read.factor) if whole else None
        return added and rest and rest._replace(value=added.value + (-rest.value if added.value < 0 else rest.value))
    count = _value(inside) if inside is not None and inside.dimensions == (("count", 1),) else None
    return _scaled(count, inside.factor) if count and inside else whole_number(plain(canonical(read.number)))


def _scaled(number: Number, factor: Fraction) -> Number:
    return number if factor == 1 else number._replace(value=number.value * factor)
