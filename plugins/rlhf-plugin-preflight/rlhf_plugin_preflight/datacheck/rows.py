"""Rows that remember which of their columns were read, and the names of the forms that they come in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

READERS = ("rows", "pairs", "demonstrations")


class RecordedRow(dict[str, Any]):
    """A row that notes the names of the columns whose values are asked for."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        super().__init__(row)
        self.used: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if dict.__contains__(self, key) else default

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if value is not None:
            self.used.add(key)
        return value


class RecordingSource:
    """A dataset component whose rows are :class:`RecordedRow`; otherwise the component itself."""

    def __init__(self, component: Any) -> None:
        self.component = component
        self.rows_read: list[tuple[str, int, RecordedRow]] = []
        """Split, place in it from 0, and row."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.component, name)
        return (lambda split: self._recorded(split, value(split))) if name in READERS else value

    def _recorded(self, split: str, rows: Sequence[Mapping[str, Any]]) -> list[RecordedRow]:
        recorded = [RecordedRow(row) for row in rows]
        self.rows_read += [(split, number, row) for number, row in enumerate(recorded)]
        return recorded


def form_of(row: RecordedRow, columns: Mapping[str, str]) -> str:
    """What a row's form is called, by the columns that were read from it (``columns``: ours -> the file's). Example:
    ``messages``"""
    ours = {theirs.split(".")[0]: name for name, theirs in columns.items()}
    values = {ours.get(name, name): dict.get(row, name) for name in row.used}
    asked = next(
        (name for name in ("prompt", "messages", "question", "conversations", "instruction") if name in values), ""
    )
    parts = [_prompt_form(asked, values.get(asked))] if asked else []
    if "chosen" in values:
        whole = isinstance(values["chosen"], list) and not asked
        transcript = isinstance(values["chosen"], str) and "\n\nAssistant:" in values["chosen"] and not asked
        sides = "Human/Assistant transcripts" if transcript else "conversations" if whole else ""
        return " + ".join([*parts, f"chosen/rejected {sides}".strip()])
    parts += [
        name for name in ("completion", "response", "output", "steps", "answer", "labels", "label") if name in values
    ]
    return " + ".join(parts) or "unknown"


def _prompt_form(name: str, value: Any) -> str:
    turns = value if isinstance(value, list) else []
    if turns and isinstance(turns[0], Mapping) and "from" in turns[0]:
        return "ShareGPT"
    if name == "instruction":
        return "Alpaca"
    return "messages" if turns else name


def columns_of(rows: Sequence[RecordedRow]) -> tuple[dict[str, int], dict[str, int]]:
    """Column -> rows that have a value in it: those that were read, and the others."""
    used: Counter[str] = Counter()
    other: Counter[str] = Counter()
    for row in rows:
        for name, value in dict.items(row):
            if value is not None:
                (used if name in row.used else other)[name] += 1
    left = {name: count for name, count in other.items() if name not in used}
    return dict(used), left
