"""Digits as English words."""

from __future__ import annotations

import re

_ONES = tuple(
    str.split(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen"
    )
)
_TENS = ["_", "_", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SCALES = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))
_NUMBER = re.compile(r"(?P<money>[$£€])?(?P<whole>\d{1,3}(?:,\d{3})+|\d+)(?:\.(?P<part>\d+))?(?P<percent>%)?")
_ORDINAL = re.compile(r"\b(\d{1,15})(?:st|nd|rd|th)\b")
_MINUS = re.compile(r"(?<![\w.-])[-−](?=\d)")
_MONEY = {"$": "dollars", "£": "pounds", "€": "euros"}


def spell_number(value: int) -> str:
    """Example: ``spell_number(1042)`` gives ``"one thousand forty two"``."""
    if value < 20:
        return _ONES[value]
    if value < 100:
        rest = value % 10
        return _TENS[value // 10] + (f" {_ONES[rest]}" if rest else "")
    for size, name in _SCALES:
        if value >= size:
            rest = value % size
            return f"{spell_number(value // size)} {name}" + (f" {spell_number(rest)}" if rest else "")
    raise AssertionError(value)


def spell_numbers(text: str) -> str:
    """The text with every number in words; sums of money and per cent too, ids of more than 15 digits one by one."""
    text = _MINUS.sub(" minus ", _ORDINAL.sub(lambda match: f" {_ordinal(int(match[1]))} ", text))
    return _NUMBER.sub(lambda match: f" {_spell(match)} ", text) if any(c.isdigit() for c in text) else text


def _ordinal(value: int) -> str:
    """Example: ``_ordinal(42)`` gives ``"forty second"``."""
    begin, _, last = spell_number(value).rpartition(" ")
    ends = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth"}
    ends["twelve"] = "twelfth"
    last = ends.get(last) or (f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th")
    return f"{begin} {last}".strip()


def _spell(match: re.Match[str]) -> str:
    digits = match["whole"].replace(",", "")
    by_one = len(digits) > 15 or (len(digits) > 1 and digits[0] == "0")
    words = " ".join(_ONES[int(d)] for d in digits) if by_one else spell_number(int(digits))
    if match["part"]:
        words += " point " + " ".join(_ONES[int(d)] for d in match["part"])
    if match["money"]:
        words += f" {_MONEY[match['money']]}"
    return words + (" percent" if match["percent"] else "")
