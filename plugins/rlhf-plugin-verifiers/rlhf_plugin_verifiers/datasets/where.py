"""Rows for which an expression over their columns holds; it is parsed and walked, never run as code."""

from __future__ import annotations

import ast
import operator
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

from rlhf_core.config import ConfigError
from rlhf_core.data import DatasetError

Row = Mapping[str, Any]
COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
FIX = "write comparisons of columns, joined by and, or, not: level in [3, 4, 5] and dataset == 'MATH'"
SHOWN = 4
"""Values of a column that an error shows."""
_said: set[str] = set()


class Where:
    """An expression over the columns of a row.

    Example:
        >>> Where("level in [3, 4] and not source == 'x'")({"level": 3, "source": "y"})
        True
    """

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            raise ConfigError(f"dataset.where '{text}' cannot be read", why=str(error), fix=FIX) from error
        self.columns = tuple(dict.fromkeys(self._columns(self._tree)))
        self.numeric = tuple(dict.fromkeys(self._beside_numbers()))
        """Those that are compared with numbers alone."""
        if not self.columns:
            raise ConfigError(f"dataset.where '{text}' names no column", fix=FIX)

    def __call__(self, row: Row) -> bool:
        return bool(self._value(self._tree, row))

    def _columns(self, node: ast.expr) -> list[str]:
        """The columns of an expression; refuses what is none."""
        match node:
            case ast.Name() | ast.Attribute():
                return [self._name(node)]
            case ast.Constant(value=None | bool() | int() | float() | str()):
                return []
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
                return []
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts) | ast.BoolOp(values=parts):
                return [name for part in parts for name in self._columns(part)]
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return self._columns(inner)
            case ast.Compare(left=left, comparators=others):
                return [name for part in (left, *others) for name in self._columns(part)]
            case _:
                raise ConfigError(
                    f"dataset.where '{self.text}' holds '{ast.unparse(node)}'",
                    why="that is neither a column, a value, a list of values nor a comparison",
                    fix=FIX,
                )

    def _beside_numbers(self) -> Generator[str, None, None]:
        for node in ast.walk(self._tree):
            sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            for one, other in [*pairwise(sides), *pairwise(sides[::-1])]:
                if isinstance(one, ast.Name | ast.Attribute) and _numbers(other):
                    yield self._name(one)

    def _name(self, node: ast.expr) -> str:
        """A column, or with dots one inside a column."""
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Attribute):
            return f"{self._name(node.value)}.{node.attr}"
        raise ConfigError(f"dataset.where '{self.text}' holds '{ast.unparse(node)}'", fix=FIX)

    def _value(self, node: ast.expr, row: Row) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)):
                return -value  # pyright: ignore[reportOptionalOperand, reportOperatorIssue] - a number, by _columns
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                return [self._value(part, row) for part in parts]
            case ast.UnaryOp(operand=inner):
                return not self._value(inner, row)
            case ast.BoolOp(op=op, values=parts):
                joined = all if isinstance(op, ast.And) else any
                return joined(self._value(part, row) for part in parts)
            case ast.Compare(left=left, ops=ops, comparators=others):
                values = [self._value(part, row) for part in (left, *others)]
                return all(_holds(op, a, b) for op, a, b in zip(ops, values, values[1:]))
            case _:
                return column_of(row, self._name(node))


def _numbers(node: ast.expr) -> bool:
    """Whether an expression is a number, or a list of numbers."""
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _numbers(inner)
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return bool(parts) and all(map(_numbers, parts))
        case _:
            return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def column_of(row: Row, name: str) -> Any:
    """The value of a column, None where the row has none of that name."""
    value: Any = row
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _holds(op: ast.cmpop, a: Any, b: Any) -> bool:
    """A comparison; one of values that have no order, such as a missing one and a number, does not hold."""
    try:
        return COMPARE[type(op)](_beside(b, a), _beside(a, b))
    except (TypeError, KeyError):
        return False


def _beside(other: Any, value: Any) -> Any:
    """A value as it is compared with another: text that says a number as that beside numbers, as CSV has no others."""
    if isinstance(value, list):
        return [_beside(other, part) for part in value]
    others = {type(part) for part in (other if isinstance(other, list) else [other])}
    if not isinstance(value, str) or str in others or not others & {int, float}:
        return value
    try:
        return int(value) if value.strip().lstrip("+-").isdecimal() else float(value)
    except ValueError:
        return value


class FilteredRows:
    """A data set's rows for which an expression holds; everything else, ``question`` too, is as the data set has it."""

    def __init__(self, of: Any, where: Where, *, say: bool = True) -> None:
        self._of, self._where, self._say = of, where, say
        self._places: dict[str, list[int]] = {}
        self._sizes: dict[str, int] = {}

    def rows(self, split: str) -> Sequence[Row]:
        return self._filtered("rows", split)

    def where(self, split: str, number: int) -> str:
        """Place of a kept row in its file."""
        named = getattr(self._of, "where", None)
        row_number = self._places[split][number]
        return str(named(split, row_number)) if callable(named) else f"{split} row {row_number + 1}"

    def row_number(self, split: str, number: int) -> int:
        """Number of a kept row among all rows, so that its id is the same under any expression."""
        inner: Callable[[str, int], int] = getattr(self._of, "row_number", lambda _, n: n)
        return inner(split, self._places[split][number])

    def left_out(self, split: str) -> int:
        """How many rows of a split that was read are left out."""
        return self._sizes.get(split, 0) - len(self._places.get(split, ()))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        if name in ("pairs", "demonstrations"):
            return lambda split: self._filtered(name, split)
        return found

    def _filtered(self, kind: str, split: str) -> Sequence[Row]:
        rows = list(getattr(self._of, kind)(split))
        places = [n for n, row in enumerate(rows) if self._where(row)]
        self._places[split], self._sizes[split] = places, len(rows)
        if rows:
            self._check(rows, places, split)
        return [rows[n] for n in places]

    def _check(self, rows: Sequence[Row], places: Sequence[int], split: str) -> None:
        text = self._where.text
        known = list(dict.fromkeys(str(name) for row in rows for name in row))
        for name in self._where.columns:
            if not any(name.split(".")[0] in row for row in rows):
                near = get_close_matches(name, known, n=1)
                raise DatasetError(
                    f"dataset.where '{text}' names column '{name}', which no row has",
                    why=f"their columns: {', '.join(sorted(known))}",
                    fix=f"did you mean '{near[0]}'?" if near else "name one of them",
                )
        for name in self._where.numeric:
            values = [value for row in rows if (value := column_of(row, name)) is not None]
            if values and all(isinstance(_beside(0, value), str) for value in values):
                raise DatasetError(
                    f"dataset.where '{text}' compares column '{name}' with numbers, and it holds only text",
                    why=f"for example {', '.join(list(dict.fromkeys(map(repr, values)))[:SHOWN])}",
                    fix=f"compare with text: {name} == {values[0]!r}",
                )
        if not places:
            shown = {
                name: list(dict.fromkeys(repr(column_of(row, name)) for row in rows))[:SHOWN]
                for name in self._where.columns
            }
            why = "; ".join(f"{name} is {', '.join(values)}" for name, values in shown.items())
            raise DatasetError(
                f"dataset.where '{text}' keeps none of {len(rows)} {split} rows",
                why=f"for example {why}",
                fix="compare with values as the rows have them",
            )
        told = f"dataset.where '{text}': {len(places)} of {len(rows)} {split} rows kept"
        if self._say and told not in _said:
            _said.add(told)
            print(told, file=sys.stderr, flush=True)
