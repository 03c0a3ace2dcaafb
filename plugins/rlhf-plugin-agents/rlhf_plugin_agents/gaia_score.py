"""GAIA's verdict on an answer (Mialon et al. 2023, arXiv:2311.12983), as its leaderboard's scorer is described.

A reference that is a number is compared as a number, without ``$``, ``%`` and commas in the answer; one with a comma or
a semicolon element by element, in order; any other text without white space, punctuation and case. In lists texts keep
their punctuation.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_UNITS = str.maketrans("", "", "$%,")


def gaia_match(answer: str, task: Mapping[str, Any]) -> float:
    """1 if the answer is the task's reference."""
    wanted = str(task["answer"])
    if _number(wanted) is not None:
        return float(_same_number(answer, wanted))
    if not re.search("[,;]", wanted):
        letters = _plain(wanted).translate(_PUNCTUATION)
        return float(_plain(answer).translate(_PUNCTUATION) == letters if letters else _plain(answer) == _plain(wanted))
    given, elements = re.split("[,;]", answer), re.split("[,;]", wanted)
    return float(len(given) == len(elements) and all(map(_same_element, given, elements)))


def _same_element(given: str, wanted: str) -> bool:
    return _plain(given) == _plain(wanted) if _number(wanted) is None else _same_number(given, wanted)


def _same_number(given: str, wanted: str) -> bool:
    return _number(given.translate(_UNITS)) == _number(wanted)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _plain(text: str) -> str:
    return re.sub(r"\s", "", text).lower()
