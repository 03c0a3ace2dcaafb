"""What the domains of tau-bench share: a database of one play, functions on it, and a digest of what they changed."""

from __future__ import annotations

import ast
import copy
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from rlhf_plugin_episodes.calculator import OPERATORS

TRANSFER = "transfer_to_human_agents"
"""After it the conversation is over, in both domains."""


class Refused(Exception):
    """A function refuses; its message is the result."""


class Store:
    """Tables of rows (table -> row's name -> row); a row is copied before it is changed."""

    domain: ClassVar[str]
    tables: ClassVar[tuple[str, ...]]
    functions: ClassVar[Mapping[str, Callable[..., Any]]]

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data: dict[str, dict[str, Any]] = {table: dict(rows) for table, rows in data.items()}
        self._copied: dict[tuple[str, str], str] = {}  # (table, row) -> the row as it was, "" of a new one

    @property
    def digest(self) -> str:
        now = {key: _text(self.data[key[0]][key[1]]) for key in sorted(self._copied)}
        changed = [(*key, text) for key, text in now.items() if text != self._copied[key]]
        return hashlib.sha256(json.dumps(changed).encode()).hexdigest()

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The result of a function, as text; what fails is a text that begins with ``Error:``."""
        function = self.functions.get(name)
        if function is None:
            return f"Unknown action {name}"
        try:
            result = function(self, **arguments)
        except TypeError as error:  # wrong arguments: the published functions are methods `invoke` of a class each
            published = f"{name.title().replace('_', '')}.invoke()"
            return f"Error: {error}".replace(f"{getattr(function, '__qualname__', name)}()", published)
        except Exception as error:
            return f"Error: {error}"
        return result if isinstance(result, str) else json.dumps(result)

    def calculate(self, expression: str) -> str:
        """Arithmetic, rounded to cents."""
        if not all(c in "0123456789+-*/(). " for c in expression):
            return "Error: invalid characters in expression"
        return str(round(float(_value(ast.parse(expression.strip(), "<string>", "eval").body)), 2))

    def think(self, thought: str) -> str:
        return ""

    def transfer_to_human_agents(self, summary: str) -> str:
        return "Transfer successful"

    def _one(self, table: str, name: str) -> Any:
        if name not in self.data[table]:
            raise Refused(f"{table[:-1]} not found")
        if (table, name) not in self._copied:
            row = copy.deepcopy(self.data[table][name])
            self.data[table][name], self._copied[table, name] = row, _text(row)
        return self.data[table][name]

    def _new(self, table: str, name: str, row: Any) -> None:
        self._copied.setdefault((table, name), "")
        self.data[table][name] = row


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=inner):
            return -_value(inner) if isinstance(sign, ast.USub) else _value(inner)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_value(left), _value(right))
        case _:
            raise ValueError("only numbers, + - * / // and brackets are allowed")


def _text(row: Any) -> str:
    return json.dumps(row, sort_keys=True)
