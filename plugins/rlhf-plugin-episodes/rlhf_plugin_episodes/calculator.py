"""Arithmetic, evaluated without Python's ``eval`` and in bounded time."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from rlhf_core.rollouts import ToolError

LIMIT = 10**30
"""Larger numbers are refused before they are computed: ``9 ** 9 ** 9`` would never end."""
OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class Calculator:
    def call(self, expression: str) -> str:
        if len(expression) > 500:
            raise ToolError(f"the expression has {len(expression)} characters, at most 500 are allowed")
        try:
            value = _value(ast.parse(expression.strip(), mode="eval").body)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ToolError(f"{expression!r:.80} is not arithmetic: {error}") from error
        except (ZeroDivisionError, OverflowError) as error:
            raise ToolError(str(error)) from error
        return str(int(value)) if float(value).is_integer() else f"{value:.10g}"


def _value(node: ast.expr) -> int | float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            value = number
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            value = -_value(inner)
        case ast.UnaryOp(op=ast.UAdd(), operand=inner):
            value = _value(inner)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            base, power = _value(left), _value(right)
            if abs(power) > 100 or (abs(base) > 1 and abs(base) ** min(abs(power), 100) > LIMIT):
                raise OverflowError("the result is too large")
            value = base**power
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            value = OPERATORS[type(op)](_value(left), _value(right))
        case _:
            raise ValueError("only numbers, + - * / // % ** and brackets are allowed")
    if isinstance(value, complex):
        raise ValueError("the result is not a real number")
    if abs(value) > LIMIT:
        raise OverflowError("the result is too large")
    return value
