"""Wrong solutions from right ones: one computed number of a GSM8K solution, marked as in ``<<48+24=72>>``, is
changed."""

from __future__ import annotations

import ast
import operator
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Kind = Literal["carried", "slip"]
CALC = re.compile(r"<<(?P<expression>[^<>=]+)=(?P<value>[^<>=]+)>>\s*(?P<shown>\$?-?[\d,]*\.?\d+)?")
NUMBER = re.compile(r"(?<![\d.,])\d[\d,]*(?:\.\d+)?(?!\d)")
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
TRIES = 30


@dataclass(frozen=True, slots=True)
class Labelled:
    steps: tuple[str, ...]
    labels: tuple[bool, ...]
    outcome: bool
    """Whether it ends in the reference answer."""


class NotWorked(ValueError):
    """A solution that does not end with ``#### X``."""


def untouched(answer: str) -> Labelled:
    """The published solution: its lines without the calculator's marks, and the answer as a last step."""
    lines, final = _parsed(answer)
    steps = (*(_plain(line) for line in lines), answer_step(final))
    return Labelled(steps, (True,) * len(steps), True)


def answer_step(final: str) -> str:
    return f"The answer is {final}."


def perturb(question: str, answer: str, kind: Kind, rng: random.Random) -> Labelled | None:
    """Change one computed number and label its step and later ones wrong; None where none can be changed. ``carried``:
    later computations use it and the answer is wrong; ``slip``: nothing else changes."""
    lines, final = _parsed(answer)
    spots = _spots(question, lines, kind)
    for _ in range(TRIES if spots else 0):
        at, mark = rng.choice(spots)
        old = _number(mark["value"])
        assert old is not None, "_spots takes only numbers"
        new = _other(old, rng)
        steps = _carried(lines, final, at, mark, new) if kind == "carried" else _slipped(lines, final, at, mark, new)
        if steps is not None:
            labels = tuple(n < at for n in range(len(steps)))
            return Labelled(steps, labels, kind == "slip")
    return None


def _parsed(answer: str) -> tuple[list[str], str]:
    solution, mark, final = answer.rpartition("####")
    lines = [line.strip() for line in solution.splitlines() if line.strip()]
    if not mark or not final.strip() or not lines:
        raise NotWorked("'answer' is not a solution that ends with '#### X'")
    return lines, final.strip().replace(",", "")


def _spots(question: str, lines: list[str], kind: Kind) -> list[tuple[int, re.Match[str]]]:
    """(line, mark) of every computed number that stands nowhere before its line."""
    earlier = {_number(n) for n in NUMBER.findall(question)}
    spots: list[tuple[int, re.Match[str]]] = []
    for at, line in enumerate(lines):
        for mark in CALC.finditer(line):
            value = _number(mark["value"])
            if value is not None and value > 0 and value not in earlier and mark["shown"]:
                spots.append((at, mark))
            earlier.add(value)
    return [f for f in spots if f[0] < len(lines) - 1] if kind == "slip" else spots


def _other(old: Fraction, rng: random.Random) -> Fraction:
    """A wrong result as people make them: off by a little, by ten, by a factor; positive."""
    near = [old + d for d in (-10, -3, -2, -1, 1, 2, 3, 10)] + [old * 2, old * 10, old / 2, old + 100]
    return rng.choice([v for v in near if v > 0 and v != old])


def _slipped(lines: list[str], final: str, at: int, mark: re.Match[str], new: Fraction) -> tuple[str, ...] | None:
    text = _text(new)
    if text is None:
        return None
    wrong = _plain(lines[at][: mark.start()]) + _with(mark["shown"], text) + _plain(lines[at][mark.end() :])
    return (*map(_plain, lines[:at]), wrong, *map(_plain, lines[at + 1 :]), answer_step(final))


def _carried(lines: list[str], final: str, at: int, mark: re.Match[str], new: Fraction) -> tuple[str, ...] | None:
    """All later steps with the wrong number in them, computed anew; None where a result cannot be written."""
    old = _number(mark["value"])
    assert old is not None
    changed: dict[Fraction, Fraction] = {old: new}
    head = _plain(lines[at][: mark.start()])
    tail = _redone(lines[at][mark.end() :], changed)
    text = _text(new)
    if tail is None or text is None:
        return None
    steps = [*map(_plain, lines[:at]), head + _with(mark["shown"], text) + tail]
    for line in lines[at + 1 :]:
        again = _redone(line, changed)
        if again is None:
            return None
        steps.append(again)
    reached = changed.get(_number(final) or Fraction(-1))
    shown = None if reached is None else _text(reached)
    return None if shown is None or shown == final else (*steps, answer_step(shown))


def _redone(line: str, changed: dict[Fraction, Fraction]) -> str | None:
    """A line with changed numbers in place of old ones; ``changed`` learns the results that follow."""
    out, at = "", 0
    for mark in CALC.finditer(line):
        replaced = _replaced(line[at : mark.start()], changed)
        expression = _replaced(mark["expression"], changed)
        if replaced is None or expression is None:
            return None
        out += replaced
        at = mark.end()
        before, after = _number(mark["value"]), evaluate(expression)
        if expression == mark["expression"] or before is None:
            out += mark["shown"] or ""
            continue
        text = None if after is None or after <= 0 else _text(after)
        if after is None or text is None:
            return None
        changed[before] = after
        out += _with(mark["shown"] or "", text)
    tail = _replaced(line[at:], changed)
    return None if tail is None else out + tail


def _replaced(text: str, changed: Mapping[Fraction, Fraction]) -> str | None:
    failed = False

    def replacement(match: re.Match[str]) -> str:
        nonlocal failed
        value = _number(match[0])
        if value is None or value not in changed:
            return match[0]
        written = _text(changed[value])
        failed = failed or written is None
        return written or ""

    out = NUMBER.sub(replacement, text)
    return None if failed else out


def _plain(line: str) -> str:
    return CALC.sub(lambda mark: mark["shown"] or "", line)


def _with(shown: str, text: str) -> str:
    """A new number with the sign of money that the old one had."""
    return f"${text}" if shown.startswith("$") else text


def _number(text: str) -> Fraction | None:
    try:
        return Fraction(text.strip().lstrip("$").replace(",", ""))
    except (ValueError, ZeroDivisionError):
        return None


def _text(value: Fraction) -> str | None:
    """At most two decimals; None for what needs more."""
    if value.denominator == 1:
        return str(value.numerator)
    cents = value * 100
    return f"{float(value):.2f}".rstrip("0") if cents.denominator == 1 else None


def evaluate(expression: str) -> Fraction | None:
    """Value of sums, differences, products and quotients in brackets; None for anything else."""
    try:
        return _value(ast.parse(expression.replace(",", "").replace("$", "").strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, KeyError, RecursionError):
        return None


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number):
            return Fraction(str(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() as op, right=right):
            return OPERATORS[type(op)](_value(left), _value(right))
        case _:
            raise ValueError(ast.dump(node))
