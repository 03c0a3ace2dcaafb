"""`trace.jsonl` read once, row by row: what of every row a page needs, and where the rows are that it shows."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rlhf_plugin_report.rows import COMPLETION, EXAMPLE, PER_TOKEN, ROW, fits, is_number
from rlhf_plugin_report.stored import parsed

Row = Mapping[str, Any]
PROMPTS = ("prompt", "set_aside")
"""Events of a prompt with its completions; what is set aside was not trained on."""
NUMBERS, WORDS = frozenset(PER_TOKEN), frozenset(("text", "info", "turns"))
LONG = frozenset(("completion_ids", "prompt_ids", "returns", "mask", *PER_TOKEN))


class Entries:
    """Completions, or examples, of a trace: numbers of each in arrays, and the place of its row in the file."""

    def __init__(self, *quantities: str) -> None:
        self.offsets, self.places = array("q"), array("q")
        self.steps, self.tokens, self.bytes = array("q"), array("q"), array("q")
        self.values = {name: array("d") for name in quantities}
        """NaN where there is none, or it is not finite."""
        self.has_ids = bytearray()
        self.has_margin = False

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, offset: int, step: int, entries: Iterable[tuple[int, Row]]) -> None:
        """Entries of the row at ``offset``, each with its place in it."""
        for place, entry in entries:
            self.offsets.append(offset)
            self.places.append(place)
            self.steps.append(step)
            self.tokens.append(entry["tokens"])
            self.bytes.append(size_of(entry))
            self.has_ids.append("completion_ids" in entry)
            self.has_margin = self.has_margin or "margin" in entry
            for name, values in self.values.items():
                value: Any = entry.get(name)
                values.append(float(value) if is_number(value) else math.nan)

    def measured(self, quantity: str) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
        """(Tokens, quantity, step) of the entries of which the quantity is finite."""
        values = np.array(self.values[quantity])
        finite = np.isfinite(values)
        return np.array(self.tokens)[finite], values[finite], np.array(self.steps)[finite]


class TraceIndex:
    """What a page needs of every row of a trace."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.broken = self.unread = 0
        """Lines that are no row, a torn last one apart, and rows that lack what a prompt's row has."""
        self.warnings: list[Row] = []
        self.with_media: list[Row] = []
        """Prompts of which a completion has images or sounds, without numbers of tokens."""
        self.has_media = False
        self.completions, self.examples = Entries("score"), Entries("margin", "loss")
        for offset, row in rows_of(path):
            self._add(offset, row)

    def _add(self, offset: int, row: Row | None) -> None:
        event = None if row is None else row.get("event")
        if row is None:
            self.broken += 1
        elif event == "warning":
            self.warnings.append(row)
        elif event in PROMPTS:
            self._add_prompt(offset, row)
        elif event == "update" and "step" in row and fits(row, ("step",)):
            listed = row.get("rows")
            rows = cast("list[Any]", listed) if isinstance(listed, list) else []
            whole = [(n, one) for n, one in enumerate(rows) if isinstance(one, Mapping) and fits(one, EXAMPLE)]
            self.examples.add(offset, row["step"], whole)

    def _add_prompt(self, offset: int, row: Row) -> None:
        listed = row.get("completions")
        completions = cast("list[Any]", listed) if isinstance(listed, list) else []
        maps: list[Row] = [one for one in completions if isinstance(one, Mapping)]
        if any(one.get("media") for one in maps):
            short = [{key: value for key, value in one.items() if key not in LONG} for one in maps]
            self.with_media.append({**{k: v for k, v in row.items() if k not in LONG}, "completions": short})
        whole = isinstance(listed, list) and len(maps) == len(completions)
        if whole and fits(row, ROW) and all(fits(one, COMPLETION) for one in maps):
            self.has_media = self.has_media or bool(row.get("media")) or any(one.get("media") for one in maps)
            self.completions.add(offset, row["step"], enumerate(maps))
        else:
            self.unread += 1

    def shown(self, entries: Entries, indices: Sequence[int]) -> Iterator[tuple[Row, int, Row]]:
        """(Row, place in it, completion or example) of each, read again."""
        if not indices:
            return
        key, at, row = "completions" if entries is self.completions else "rows", -1, dict[str, Any]()
        with self.path.open("rb") as file:
            for index in indices:
                if entries.offsets[index] != at:
                    at = entries.offsets[index]
                    file.seek(at)
                    row = parsed(file.readline())
                place = entries.places[index]
                yield row, place, row[key][place]


def rows_of(path: Path) -> Iterator[tuple[int, Row | None]]:
    """(Place in the file, row) of every line; None for a line that is no row, the torn last one apart."""
    if not path.is_file():
        return
    offset = 0
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                row = parsed(line)
                yield offset, cast("Row", row) if isinstance(row, Mapping) else None
            offset += len(line)


def size_of(entry: Row) -> int:
    """About the bytes of a completion or an example on a page."""
    size = 150
    for key, value in entry.items():
        if key in WORDS:
            size += len(value if isinstance(value, str) else str(value))
        elif key in NUMBERS and isinstance(value, list):
            size += 8 * len(value)
    return size
