"""Columns of any file under our names, and turns in one form. Every refusal names file and row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from rlhf_core.data.tools import read_tools
from rlhf_core.data.turns import read_turns
from rlhf_core.types.errors import DatasetError, did_you_mean
from rlhf_core.types.messages import VARIABLES, Message, Tool

PATTERN_TIMEOUT_S = 5.0
"""For cutting one answer out of its column."""

Row = Mapping[str, Any]
PROMPT_COLUMNS = ("prompt", "messages", "question", "conversations", "instruction")
"""Where a prompt is looked for, in this order."""
TOOL_COLUMNS = ("tools", "functions")
KNOWN_COLUMNS = (*PROMPT_COLUMNS, "input", "system", "id", "answer", "chosen", "rejected", VARIABLES)
"""Columns that mean something to every reader; the others are a row's further columns."""


class RawRow(NamedTuple):
    """One row and its place in the file."""

    row: Row
    number: int
    """Place in its file or split, from 0."""
    where: str
    split: str = "train"
    """Which of the source's own splits it stands in; rows that are set aside by a hash stand in ``train``."""


class UnusableRow(Exception):
    """A row that is well formed but cannot be trained on; it is dropped and counted under ``reason``."""

    def __init__(self, reason: str, text: str) -> None:
        self.reason = reason
        super().__init__(text)


class RowReader:
    """Reads the columns of one source's rows under our names.

    Args:
        label: the source's name, for messages.
        columns: our column -> the file's.
        mapped: False if no setting maps columns, as in the command line's own inputs.
    """

    def __init__(self, label: str, columns: Mapping[str, str], *, mapped: bool = True) -> None:
        self.label, self.columns, self.mapped = label, dict(columns), mapped
        self._known = {columns.get(c, c) for c in KNOWN_COLUMNS}

    def check_columns(self, records: Sequence[RawRow]) -> None:
        """Refuse mapped columns that the first row lacks."""
        for ours, theirs in self.columns.items():
            if records and not _has(records[0].row, theirs):
                raise self.missing(theirs, records[0], f"dataset.columns maps '{ours}' to it; ")

    def missing(self, column: str, record: RawRow, why: str = "") -> DatasetError:
        """The error for a column that is not there."""
        known = sorted(map(str, record.row))
        fix = did_you_mean(column, known) or (
            f"map it: dataset.columns={{{column}: NAME}}" if self.mapped else f"name one of them '{column}'"
        )
        what = f"{'dataset' if self.mapped else 'file'} '{self.label}' has no column '{column}'"
        return DatasetError(what, where=record.where, why=f"{why}its columns: {', '.join(known)}", fix=fix)

    def find(self, record: RawRow, *columns: str) -> str | None:
        """The first of these columns that has a value in the row."""
        return self._first(record, columns)[0]

    def get(self, record: RawRow, *columns: str) -> Any:
        """Value of the first of our columns that the row has, None if none."""
        return self._first(record, columns)[1]

    def _first(self, record: RawRow, columns: Sequence[str]) -> tuple[str | None, Any]:
        for column in columns:
            if (value := _inside(record.row, self.columns.get(column, column))) is not None:
                return column, value
        return None, None

    def need(self, record: RawRow, *columns: str) -> Any:
        """Like :meth:`get`, but absence is an error that names the row."""
        if (value := self._first(record, columns)[1]) is not None:
            return value
        theirs = [self.columns.get(c, c) for c in columns]
        empty = next((name for name in theirs if _has(record.row, name)), None)
        if empty is None:
            raise self.missing(theirs[0], record)
        what = f"column '{empty}' of '{self.label}' is null in this row"
        raise DatasetError(what, where=record.where, fix="fill it, or remove the row")

    def prompt(self, record: RawRow) -> tuple[Message, ...]:
        """A prompt given as text or as a list of turns, its system turn and its ``input`` included."""
        column, value = self._first(record, PROMPT_COLUMNS)
        value = self.need(record, *PROMPT_COLUMNS) if value is None else value
        if isinstance(value, str):
            extra = self.get(record, "input") if column == "instruction" else None
            text = f"{value}\n\n{extra}" if extra else value
            before = self._history(record) if column == "instruction" else ()
            turns: tuple[Message, ...] = (*before, {"role": "user", "content": text})
        else:
            turns = self.messages(value, record)
        system = self.get(record, "system")
        if isinstance(system, str) and system.strip() and turns[0]["role"] != "system":
            turns = ({"role": "system", "content": system}, *turns)
        return turns

    def _history(self, record: RawRow) -> tuple[Message, ...]:
        """Alpaca's earlier rounds: ``[[instruction, output], ...]``."""
        rounds = self.get(record, "history") or ()
        if not all(isinstance(r, (list, tuple)) and len(r) == 2 and all(isinstance(s, str) for s in r) for r in rounds):
            what, why = "history is not a list of [instruction, output]", f"got {str(rounds)[:80]}"
            raise DatasetError(what, where=record.where, why=why)
        return tuple({"role": role, "content": s} for r in rounds for role, s in zip(("user", "assistant"), r))

    def messages(self, turns: Any, record: RawRow) -> tuple[Message, ...]:
        """Normalise OpenAI, ShareGPT, Anthropic and Hermes turns."""
        rows: Sequence[Any] = turns if isinstance(turns, (list, tuple)) else [turns]
        if len(rows) == 1 and isinstance(rows[0], (list, tuple)):  # BFCL: a list of rounds, of which there is one
            rows = rows[0]
        normalised = read_turns(rows, record.where, tools=self.tool_column(record) is not None)
        if not normalised:
            raise DatasetError("a conversation has no turns", where=record.where, fix="remove or fill that row")
        return normalised

    def tools(self, record: RawRow) -> tuple[Tool, ...]:
        """The tools that a row offers, in ``tools`` (or ``functions``), a list of schemas or one as JSON text.

        Such a column that holds something else (names, an empty list) is a further column, unless it is mapped.
        """
        column = self.tool_column(record)
        return () if column is None else read_tools(self.get(record, column), record.where)

    def tool_column(self, record: RawRow) -> str | None:
        """Which of our names for it holds the row's tools."""
        if not self.columns and record.row.keys().isdisjoint(TOOL_COLUMNS):
            return None
        row = dict(record.row.items())  # looked at, not read yet
        values = {c: _inside(row, self.columns.get(c, c)) for c in TOOL_COLUMNS}
        column, value = next(((c, v) for c, v in values.items() if v is not None), (None, None))
        if column is None:
            return None
        if isinstance(value, str):
            return column if value.strip()[:1] in ("[", "{") and value.strip() not in ("[]", "{}") else None
        rows = value if isinstance(value, (list, tuple)) else [value]
        return column if rows and (column in self.columns or all(isinstance(row, Mapping) for row in rows)) else None

    def answer(self, record: RawRow, pattern: str | None) -> str | None:
        """Reference answer, cut out by ``pattern`` when given."""
        if pattern is None:
            value = self.get(record, "answer")
            return None if value is None else str(value)
        value = str(self.need(record, "answer"))
        regex: Any = import_module("regex")  # the syntax of re, with a deadline
        try:
            match = regex.search(pattern, value, flags=regex.DOTALL, timeout=PATTERN_TIMEOUT_S)
        except TimeoutError as error:
            what = f"answer_pattern {pattern!r} needs more than {PATTERN_TIMEOUT_S:g} s for one answer"
            why = "it tries too many ways to match, as nested repetitions such as (a+)+ do"
            fix = "write dataset.answer_pattern without a repetition inside a repetition"
            raise DatasetError(what, where=record.where, why=why, fix=fix) from error
        if match is None:
            what, why = f"answer_pattern {pattern!r} does not match the answer", f"the answer ends with {value[-60:]!r}"
            raise DatasetError(what, where=record.where, why=why, fix="correct the row or dataset.answer_pattern")
        return match[1].strip()

    def rest(self, record: RawRow, *used: str) -> tuple[dict[str, Any], list[str]]:
        """(further columns, besides ``used`` ones, as JSON values, names of columns that JSON cannot carry)."""
        tools = self.tool_column(record)
        skip = self._known.union(self.columns.get(c, c) for c in (*used, *([tools] if tools else [])))
        ours = {theirs: name for name, theirs in self.columns.items()}
        rest = {ours.get(name, name): value for name, value in record.row.items() if name not in skip}
        nested = {name: theirs for name, theirs in self.columns.items() if theirs not in record.row}
        rest |= {name: _inside(record.row, theirs) for name, theirs in nested.items() if theirs not in skip}
        bad = [name for name, value in rest.items() if not is_json(value)]
        return {name: value for name, value in rest.items() if name not in bad}, bad


def _inside(row: Row, name: str) -> Any:
    """A column's value; a name with dots that is not a column leads into columns that hold mappings."""
    value: Any = row.get(name)
    if value is not None or "." not in name or name in row:
        return value
    value = row
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _has(row: Row, name: str) -> bool:
    return name in row or _inside(row, name) is not None


def finite(value: Any) -> float:
    """The number that a value is, or its text; NaN for anything else, such as true or an infinity.

    Example:
        >>> finite("1.5"), finite(True), finite(float("inf"))
        (1.5, nan, nan)
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return math.nan if isinstance(value, bool | np.bool_) or math.isinf(number) else number


def is_json(value: Any) -> bool:
    """Whether JSON carries a value unchanged."""
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and is_json(v) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(is_json, value))
    return value is None or isinstance(value, (str, int, float, bool))
