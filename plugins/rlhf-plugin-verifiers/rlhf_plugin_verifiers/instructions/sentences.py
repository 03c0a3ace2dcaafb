"""Sentences and word tokens by NLTK's Punkt (Kiss and Strunk 2006, doi:10.1162/coli.2006.32.4.485) and Treebank
algorithms, with a short list of abbreviations in place of the trained one."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from rlhf_plugin_verifiers.instructions.lexicon import LISTS

ABBREVIATIONS = frozenset(LISTS["abbreviations"])
"""Words whose final period does not end a sentence, in lower case and without it; "etc." and "e.g." do, as in the
trained model, which never saw them."""
STARTERS = frozenset(LISTS["starters"])
"""Words that are usually lower case, so that a capital marks the start of a sentence."""
_RUN = re.compile(r"\S+")
_INNER = re.compile(r"""[.?!](?=[)";}\]*:@'({\[!?”’»])""")
_CLOSERS = re.compile(r"""["')\]}”’»]+?(?:\s+|(?=--)|$)""")
_ONLY_CLOSERS = re.compile(r"""["')\]}”’»]+""")
_TRIM = "\"'`([{*_<“‘"


def sentences(text: str) -> list[str]:
    """Split a text into sentences; a line break alone ends none, typographic quotes close one, and a quoted one with
    lower case after it is part of the sentence around it."""
    pieces: list[str] = []
    start = 0
    for end in _candidates(text):
        if end.position <= start or end.goes_on or not _ends(end.token, end.after, end.following):
            continue
        pieces.append(text[start : end.position])
        start = end.next_start if end.following else end.position
    pieces.append(text[start:])
    return [s for s in (p.strip() for p in _realign(pieces)) if s]


class _End(NamedTuple):
    """Where a sentence may end."""

    position: int
    token: str
    """From the last white space up to the mark."""
    after: str | None
    """The character after the mark, within the token."""
    following: str | None
    """The next token, where the mark ends its own."""
    next_start: int
    goes_on: bool = False
    """Whether only quotes and brackets close after the mark, and a word in lower case follows them."""


def _candidates(text: str) -> Iterator[_End]:
    """The last mark of every run that may end a sentence, in linear time (the published pattern is quadratic)."""
    runs = list(_RUN.finditer(text))
    for run, following in zip_longest(runs, runs[1:]):
        token = run[0]
        if following is not None and token[-1] in ".?!":
            yield _End(run.end(), token, None, following[0], following.start())
            continue
        if inner := [mark.end() for mark in _INNER.finditer(token)]:
            mark = inner[-1]
            goes_on = following is not None and following[0][0].islower() and _ONLY_CLOSERS.fullmatch(token, mark)
            yield _End(run.start() + mark, token[:mark], token[mark], None, run.end(), bool(goes_on))


def _ends(token: str, after: str | None, following: str | None) -> bool:
    """Whether a token that ends with ``.``, ``?`` or ``!`` ends its sentence."""
    if token[-1] in "?!":
        return True
    if after in ("!", "?"):
        return False
    next_word = (following or "").lstrip(_TRIM)
    if token.endswith(".."):
        return _starts(next_word) is True
    word = token[:-1].lstrip(_TRIM).lower()
    if word in ABBREVIATIONS or word.rpartition("-")[2] in ABBREVIATIONS:
        return bool(following) and _starts(next_word) is True
    if re.fullmatch(r"[^\W\d_]", word):
        return after is not None or _starts(next_word) is True
    if re.fullmatch(r"-?[\d.,]*\d", word):
        return after is not None or (following or "")[:1] in "[(" or _starts(next_word) is not False
    return True


def _starts(word: str) -> bool | None:
    """Whether a word starts a sentence by its capital letter; None where that says nothing."""
    if not word or word[0] in ";:,.!?":
        return False
    if word[0].isupper() and re.split(r"\W", word.lower(), maxsplit=1)[0] in STARTERS:
        return True
    return False if word[0].islower() else None


def _realign(pieces: list[str]) -> list[str]:
    """Give quotes and brackets that close a sentence to it, not to the next."""
    realigned: list[str] = []
    for piece in pieces:
        match = _CLOSERS.match(piece) if realigned else None
        if match:
            realigned[-1] += match[0].strip()
            piece = piece[match.end() :]
        if piece.strip():
            realigned.append(piece)
    return realigned


_TREEBANK = tomllib.loads(Path(__file__).with_name("treebank.toml").read_text(encoding="utf-8"))
_STEPS = tuple((re.compile(pattern, re.IGNORECASE), replacement) for pattern, replacement in _TREEBANK["steps"])


@lru_cache(maxsize=64)
def word_tokens(text: str) -> tuple[str, ...]:
    """Treebank tokens: punctuation and contractions stand alone, a period only at the end of a sentence."""
    tokens: list[str] = []
    for sentence in sentences(text):
        for pattern, replacement in _STEPS:
            sentence = pattern.sub(replacement, sentence)
        tokens += sentence.split()
    return tuple(tokens)


def count_words(text: str) -> int:
    """Runs of letters, digits and underscores."""
    return len(re.findall(r"\w+", text))
