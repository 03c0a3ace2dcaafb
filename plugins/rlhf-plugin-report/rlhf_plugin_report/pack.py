"""Rows as few bytes: keys, texts and words that repeat are written once, then gzip; unpack.js has the inverse."""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

TEXTS = ("run", "id", "prompt", "finish_reason", "status", "text", "detail")
"""Written as the place in the list of texts."""
VALUES = ("scores", "media", "segments", "turns")
"""The same, of JSON values."""
LISTS_OF_TEXTS = ("pieces",)
"""Lists of such places."""
MAPPINGS = ("parts",)
"""Written as the number of their keys' row, then their values."""
MAPPINGS_OF_TEXTS = ("texts",)
"""The same, with places in the list of texts as values."""
LOGPROBS = ("logprobs", "trainer_logprobs", "old_logprobs", "ref_logprobs")
"""Rounded to five decimals instead of five digits: ratios are of their differences."""
WORD = re.compile(r" ?\S+|\s")
"""A word with the blank before it; every text is a sequence of such matches."""
ONE, TWO = 192, 192 + 63 * 256
"""Numbers below take one byte, or two; larger ones four."""
LEVEL = 6
"""Of zlib: higher ones take twice as long and save a hundredth."""


class Packer:
    """Fills the tables while rows are packed."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.values: dict[str, int] = {}
        self.shapes: dict[tuple[str, ...], int] = {}

    def row(self, row: Mapping[str, Any]) -> list[Any]:
        return [self._shape(row), *(self._value(key, value) for key, value in row.items())]

    def _shape(self, mapping: Mapping[str, Any]) -> int:
        return self.shapes.setdefault(tuple(mapping), len(self.shapes))

    def _value(self, key: str, value: Any) -> Any:
        if key in TEXTS:
            return self._text(str(value))
        if key in LISTS_OF_TEXTS:
            return [self._text(text) for text in value]
        if key in VALUES:
            text = json.dumps(_short(value), ensure_ascii=False, separators=(",", ":"))
            return self.values.setdefault(text, len(self.values))
        if key in MAPPINGS:
            return [self._shape(value), *map(_short, value.values())]
        if key in MAPPINGS_OF_TEXTS:
            return [self._shape(value), *map(self._text, value.values())]
        if key in LOGPROBS:
            return [round(x, 5) if isinstance(x, float) and math.isfinite(x) else None for x in value]
        return _short(value)

    def _text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))


def packed(rows: Sequence[Mapping[str, Any]], **beside: Any) -> bytes:
    """A gzip stream: four bytes for the length of a JSON object, that object, and the texts as numbers of words."""
    packer = Packer()
    short = [packer.row(row) for row in rows]
    words, coded = _coded(list(packer.texts))
    facts = {
        **beside,
        "words": words,
        "texts": len(packer.texts),
        "values": [json.loads(text) for text in packer.values],
        "shapes": [list(s) for s in packer.shapes],
        "kinds": {
            "texts": TEXTS,
            "values": VALUES,
            "pieces": LISTS_OF_TEXTS,
            "mappings": MAPPINGS,
            "textMappings": MAPPINGS_OF_TEXTS,
        },
        "rows": short,
    }
    text = json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return zipped(len(text).to_bytes(4, "big") + text + coded)


def zipped(data: bytes) -> bytes:
    """As gzip, without a time in it: the same data are the same bytes."""
    gzip = zlib.compressobj(LEVEL, zlib.DEFLATED, 31)
    return gzip.compress(data) + gzip.flush()


def in_script(data: bytes) -> str:
    """What can stand in a script element."""
    return base64.b64encode(data).decode()


def _coded(texts: Sequence[str]) -> tuple[list[str], bytes]:
    """Every word once, the commonest first; and of each text the count of its words, then their places."""
    split = [WORD.findall(text) for text in texts]
    counted = Counter(word for words in split for word in words)
    code = {word: _number_bytes(n) for n, (word, _) in enumerate(counted.most_common())}
    return list(code), b"".join(_number_bytes(len(words)) + b"".join(map(code.__getitem__, words)) for words in split)


def _number_bytes(n: int) -> bytes:
    if n < ONE:
        return bytes((n,))
    if n < TWO:
        return bytes((ONE + ((n - ONE) >> 8), (n - ONE) & 255))
    return bytes((255, *n.to_bytes(3, "big")))


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, list):
        return [_short(one) for one in value]
    if isinstance(value, Mapping):
        return {str(key): _short(one) for key, one in value.items()}
    return value


def _number(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.5g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short
