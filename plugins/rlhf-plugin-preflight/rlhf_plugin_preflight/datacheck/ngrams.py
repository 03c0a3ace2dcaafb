"""Words and n-grams of a text: the units in which texts are compared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from unicodedata import normalize

_WORD = re.compile(r"\w+")
Gram = tuple[str, ...]


def words(text: str) -> list[str]:
    """Lower-case words and numbers, without punctuation (as in Brown et al. 2020, appendix C)."""
    return _WORD.findall(normalize("NFKC", text).lower())


def grams(tokens: list[str], size: int) -> Iterator[Gram]:
    """Every run of ``size`` words; the whole text where it is shorter, nothing of an empty one."""
    if tokens and len(tokens) < size:
        yield tuple(tokens)
    for start in range(len(tokens) - size + 1):
        yield tuple(tokens[start : start + size])
