"""Sentences to be spoken: short ones from text files, and random words for sounds that they lack."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from rlhf_plugin_tts.pocket_voice.numbers import spell_numbers

_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?")
_SENTENCE = re.compile(r"[A-Z][A-Za-z0-9' ,$%.]*?[a-z][.?]")


def sentences(files: Sequence[Path], count: int, dictionary: Sequence[str], seed: int = 0) -> list[str]:
    """Distinct sentences of 2 to 11 words; one in six is made of random dictionary words."""
    draw = random.Random(seed)
    known = set(dictionary)
    texts = sorted({s for file in files for s in _from(file) if known.issuperset(_WORD.findall(s.lower()))})
    draw.shuffle(texts)
    made = [_random_words(draw, dictionary) for _ in range(count // 6)]
    out = texts[: count - len(made)] + made
    draw.shuffle(out)
    return out


def _random_words(draw: random.Random, dictionary: Sequence[str]) -> str:
    words = draw.sample(list(dictionary), draw.randint(2, 5))
    return " ".join(words).capitalize() + draw.choice("..?")


def _from(file: Path) -> Iterator[str]:
    with gzip.open(file, "rt") as lines:
        for line in lines:
            for text in json.loads(line).values():
                if isinstance(text, str):
                    yield from _short(re.sub(r"<<.*?>>", "", text))


def _short(text: str) -> Iterator[str]:
    for part in re.split(r"(?<=[.?!])\s+", text):
        if _SENTENCE.fullmatch(part):
            words = re.sub(r"\s+", " ", spell_numbers(part)).strip()
            if 2 <= len(words.split()) <= 11 and len(words) < 75 and not re.search(r"[A-Z]{2}", words):
                yield words
