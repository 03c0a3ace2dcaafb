"""Text and a description of the voice to what the policy reads: style words, phones, word boundaries and pauses."""

from __future__ import annotations

import gzip
import logging
import re
import tomllib
import unicodedata
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rlhf_core.data import DatasetError
from rlhf_plugin_tts.pocket_voice.numbers import spell_numbers

log = logging.getLogger("rlhf.tts")

WORD_END, COMMA, FULL_STOP, QUESTION = "_", ",", ".", "?"
STYLES = ("slow", "fast", "low", "high", "flat", "lively", "clear", "rough", "plain")
"""What a description may ask for; ``plain`` leaves everything open."""
_TABLES: Mapping[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
PHONES: tuple[str, ...] = tuple(_TABLES["phones"].split())
LIKE: Mapping[str, str] = _TABLES["like"]
_RULES: Mapping[str, str] = _TABLES["rules"]
SAID = ",;:.!?'\"()-"
"""Signs that are pauses, join words, or need no sound."""
MOST_PHONES = 120
"""About ten seconds of speech."""
_STYLE_OF = {word: style for style, words in LIKE.items() for word in words.split()}
_QUOTES = str.maketrans(_TABLES["quotes"])


def words_of(text: str, where: str = "text") -> list[str]:
    """Lower-case words and pauses (``,``, ``.``, ``?``); numbers in words; emoji are left out."""
    plain = unicodedata.normalize("NFKC", text.translate(_QUOTES))  # first: a fraction's digits are numbers too
    plain = unicodedata.normalize("NFKD", spell_numbers(plain))
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    foreign = sorted({c for c in plain if c.isalpha() and not c.isascii()})
    if foreign:
        raise DatasetError(
            f"{where}: the voice cannot read {''.join(foreign[:8])!r}",
            where=repr(text[:60]),
            why="pocket-voice speaks English in Latin letters only",
            fix="write it in Latin letters, leave the row out, or use a model of that language",
        )
    silent = sorted({c for c in plain if not (c.isalpha() or c.isspace() or c in SAID)})
    if silent:
        log.warning("%s: %r is not spoken", where, "".join(silent[:8]))
    spoken = re.findall(r"[a-z]+(?:'[a-z]+)*|[,;:]|[.!]+|\?", plain.lower())
    marks = {",": COMMA, ";": COMMA, ":": COMMA, "?": QUESTION}
    words = [w if w[0].isalpha() else marks.get(w, FULL_STOP) for w in spoken]
    if not any(w[0].isalpha() for w in words):
        raise DatasetError(
            f"{where}: there is nothing to say", where=repr(text[:60]), fix="give a sentence with at least one word"
        )
    return words


def phones_of(text: str, where: str = "text") -> list[str]:
    out: list[str] = []
    for word in words_of(text, where):
        if word in (COMMA, FULL_STOP, QUESTION):
            if out and out[-1] == WORD_END:
                out[-1] = word
        else:
            out += [*pronounce(word), WORD_END]
    out[-1] = FULL_STOP if out[-1] in (WORD_END, COMMA) else out[-1]
    count = sum(p in PHONES for p in out)
    if count > MOST_PHONES:
        raise DatasetError(
            f"{where}: {count} phones are too many for one clip; {MOST_PHONES} (about ten seconds) fit",
            where=f"{text[:60]!r}..., {len(text)} characters",
            fix="split it into sentences, one row each",
        )
    return out


def styles_of(description: str, where: str = "description") -> list[str]:
    """Style words that a description asks for, in a fixed order."""
    words = re.findall(r"[a-z]+", description.lower())
    styles = sorted({_STYLE_OF[w] for w in words if w in _STYLE_OF}, key=STYLES.index)
    names = ", ".join(STYLES)
    if not styles:
        what = "is empty" if not description.strip() else f"{description[:60]!r} holds no word that the voice knows"
        raise DatasetError(
            f"{where}: the description {what}",
            why="pocket-voice was trained on a few words and would ignore all others",
            fix=f"use some of: {names}; or leave the description out, which means 'plain'",
        )
    for one, other in (("slow", "fast"), ("low", "high"), ("flat", "lively"), ("clear", "rough")):
        if one in styles and other in styles:
            raise DatasetError(
                f"{where}: {description[:60]!r} asks for {one} and {other} at once", fix="keep one of them"
            )
    return [s for s in styles if s != "plain"] or ["plain"]


def prompt_text(text: str, description: str = "plain", where: str = "prompt") -> str:
    """What the policy reads, tokens separated by blanks: ``"slow | hh ay . >"`` of "Hi." by "a slow voice"."""
    return " ".join([*styles_of(description, where), "|", *phones_of(text, where), ">"])


@cache
def lexicon() -> dict[str, str]:
    packed = (Path(__file__).parent / "weights" / "lexicon.txt.gz").read_bytes()
    return dict(line.split(" ", 1) for line in gzip.decompress(packed).decode().splitlines())


def pronounce(word: str) -> list[str]:
    phones = lexicon().get(word)
    if phones:
        return phones.split()
    if word.endswith("'s") and len(word) > 2:
        return [*pronounce(word[:-2]), "z"]
    return by_letters(word.replace("'", ""))


def by_letters(word: str) -> list[str]:
    """Phones of a word that no list holds: the longest rule that fits; a final e and doubled letters are silent."""
    word = re.sub(r"([b-df-hj-np-tv-z])\1", r"\1", word)
    word = word[:-1] if len(word) > 3 and word.endswith("e") and word[-2] not in "aeiou" else word
    out: list[str] = []
    at = 0
    while at < len(word):
        size = next(n for n in (4, 3, 2, 1) if word[at : at + n] in _RULES)
        out += _RULES[word[at : at + size]].split()
        at += size
    return out
