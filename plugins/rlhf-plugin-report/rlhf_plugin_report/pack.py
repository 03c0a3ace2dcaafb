"""Rows as compact JSON: names of keys and texts that repeat are written once, numbers with five digits.

The page's script has the inverse, ``unpacked`` of rollouts.js.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

TEXTS = ("run", "id", "prompt", "finish_reason", "status")
"""Written as the place in the list of texts."""
VALUES = ("scores", "media", "segments")
"""The same, of JSON values."""
LISTS_OF_TEXTS = ("pieces",)
"""Lists of such places."""
MAPPINGS = ("parts",)
"""Written as the number of their keys' row, then their values."""


class Packer:
    """Fills the tables while rows are packed."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.values: dict[str, int] = {}
        self.shapes: dict[tuple[str, ...], int] = {}

    def row(self, row: Mapping[str, Any]) -> list[Any]:
        """The number of the row's keys, then its values."""
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
        return _short(value)

    def _text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))


def packed(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``texts``, ``values``, ``shapes`` and ``rows``."""
    packer = Packer()
    short = [packer.row(row) for row in rows]
    values = [json.loads(text) for text in packer.values]
    return {
        "texts": list(packer.texts),
        "values": values,
        "shapes": [list(s) for s in packer.shapes],
        "kinds": {"texts": TEXTS, "values": VALUES, "pieces": LISTS_OF_TEXTS, "mappings": MAPPINGS},
        "rows": short,
    }


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
