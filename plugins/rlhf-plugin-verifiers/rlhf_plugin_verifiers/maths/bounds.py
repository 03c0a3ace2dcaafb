"""What an answer may ask for before sympy sees it: length, nesting, and the size of the numbers that it denotes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from sympy import (
    Basic,
    Derivative,
    Float,
    Integral,
    Limit,
    MatrixBase,
    Pow,
    Product,
    Rational,
    Sum,
    binomial,
    exp,
    factorial,
    gamma,
)
from sympy.matrices.expressions import MatPow

MAX_LENGTH = 1000
"""Characters of LaTeX; a longer answer is compared as text only."""
MAX_DEPTH = 12
"""Brackets within brackets, braces that change nothing left out: parsing time grows with them."""
MAX_DIGITS = 20_000
"""Decimal digits of a number, or of its denominator."""
MAX_ROOT_DIGITS = 300
"""Of a number under a root."""
MAX_TERMS = 1000
"""Of a sum or product, of a matrix, and of the expression itself."""


class TooMuch(ValueError):
    """An answer asks for more work than a verdict may take."""


_BRACKET = re.compile(r"\\?[{}()\[\]]|\\left\b|\\right\b")
_DOUBLE = re.compile(r"\{\s*(\{[^{}]*\})\s*\}")
_PARTED = re.compile(r"[\d}](?:\s|\\[,;: ]|~|\\q?quad(?![a-z]))+(?=\d)")
_MIXED = re.compile(r"(?<![\d.,])\d+\s+\d+\s*/\s*\d+(?![\d.])")
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:\s|\\,|~)\d{3})+(?!\d)")
_FUNCTION = r"\\(?:log|ln|lg|exp|int|iint|oint|sum|prod|lim|(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|det|gcd|lcm)(?![a-z])"
_PREFIXES = re.compile(rf"(?:{_FUNCTION}[\s_^\d{{}}]*){{4}}|(?:\\o?i*nt(?![a-z]).*?){{4}}", re.DOTALL)
"""Functions of functions without brackets, and integrals: parsing time doubles with each."""
_EAGER = re.compile(r"binom|choose|gcd|lcm|matrix|det|array|perm|\bP\(|\bC\(")
"""What the parser evaluates at once, and not only when it is compared."""
_LARGE = re.compile(r"\d{5}|\^\s*(?:\{[^{}]*(?:\d{3}|[\^!])|\d{3})|!")


def without_double_braces(latex: str) -> str:
    """A text in which no braces hold nothing but other braces: ``{{{42}}}`` is ``{42}``."""
    while True:
        latex, changed = _DOUBLE.subn(r"\1", latex)
        if not changed:
            return latex


def check_text(latex: str) -> None:
    """Raise `TooMuch` for LaTeX that is too long or too deep, and ``ValueError`` for digits that only space parts:
    ``4 2`` is not a number, ``3 1/2`` and ``12 000`` are."""
    if len(latex) > MAX_LENGTH:
        raise TooMuch(f"{len(latex)} characters")
    depth = deepest = 0
    for match in _BRACKET.finditer(latex):
        depth += (match[0][-1] in "{([") - (match[0][-1] in "})]")
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        raise TooMuch(f"{deepest} brackets within each other")
    if _PREFIXES.search(latex):
        raise TooMuch("four functions or integrals without brackets")
    if _EAGER.search(latex) and _LARGE.search(latex):
        raise TooMuch("numbers too large for what is computed with them")
    if digits_parted(latex):
        raise ValueError("digits that a space parts")


def digits_parted(latex: str) -> bool:
    """Whether space alone stands between two numbers (``4 2``, ``4\\ 2``); mixed numbers and groups of three may."""
    if "matrix" in latex or "array" in latex or "cases" in latex:
        return False
    return any(m[0][0] != "}" for m in _PARTED.finditer(_GROUPED.sub("0", _MIXED.sub("0", latex))))


def check_size(value: Any) -> None:
    """Raise `TooMuch` for a parsed answer whose value nobody could write down, before anything evaluates it."""
    if (size := digits_of(value, [MAX_TERMS])) > MAX_DIGITS:
        raise TooMuch(f"a number of about 10^{math.log10(size):.0f} digits" if size < math.inf else "an endless number")


def digits_of(value: Any, left: list[int]) -> float:
    """Upper bound for the decimal digits of a value and of its denominator, ``inf`` beyond any; ``left`` counts the
    terms that may still be looked at."""
    left[0] -= 1
    if left[0] < 0:
        raise TooMuch(f"more than {MAX_TERMS} terms")
    if isinstance(value, MatrixBase):
        return _most(value.flat(), left)
    if isinstance(value, Rational):
        return math.log10(max(abs(value.p), value.q)) if abs(value.p) < 1 << 1000 else value.p.bit_length() * 0.302
    if isinstance(value, Float):
        return abs(math.log10(abs(value))) if value and abs(value) < 1e308 and abs(value) > 1e-308 else 400.0
    if not isinstance(value, Basic) or not value.args:
        return 1.0
    if isinstance(value, Pow | MatPow):
        base, exponent = (digits_of(a, left) for a in value.args)
        if base > MAX_ROOT_DIGITS and not value.args[1].is_integer:
            raise TooMuch(f"a root of a number of more than {MAX_ROOT_DIGITS} digits")
        return max(base, 1.0) * max(1.0, _magnitude(value.args[1], exponent)) + exponent
    if isinstance(value, factorial | gamma | exp | binomial) or value.func.__name__ in ("factorial2", "sinh", "cosh"):
        size = _most(value.args, left)
        return max(1.0, size) * max(_magnitude(a, size) for a in value.args) + 1
    if isinstance(value, Sum | Product):
        return _loop(value, left)
    sizes = [digits_of(a, left) for a in value.args]
    return sum(sizes) if value.is_Mul else max(sizes) + math.log10(len(sizes)) + 1


def is_open_ended(value: Any) -> bool:
    """Whether a value holds an integral, derivative, limit, or a sum or product without a number of terms: it is not
    worked out, and is equal only to what is written alike."""
    if isinstance(value, MatrixBase):
        return any(map(is_open_ended, value.flat()))
    if not isinstance(value, Basic):
        return False
    loops = value.atoms(Sum, Product)
    return value.has(Integral, Limit, Derivative) or any(
        not b.is_Integer for loop in loops for limit in loop.limits for b in limit[1:]
    )


def _loop(value: Any, left: list[int]) -> float:
    """Of a sum or product, which may have :data:`MAX_TERMS` terms."""
    bounds = [b for limit in value.limits for b in limit[1:] if b.is_Integer]
    if any(abs(b) > MAX_TERMS for b in bounds) or len(bounds) > 4:
        raise TooMuch(f"a sum or product of more than {MAX_TERMS} terms")
    return digits_of(value.args[0], left) * (MAX_TERMS if isinstance(value, Product) else 1) + 4


def _most(values: Iterable[Any], left: list[int]) -> float:
    return max([digits_of(v, left) for v in values], default=1.0)


def _magnitude(value: Any, digits: float) -> float:
    """Upper bound for the absolute value of a number that has so many digits; 1 for what has variables."""
    if not value.is_number:
        return 1.0
    if digits > 30:
        return 10.0**digits if digits < 300 else math.inf
    try:
        return float(abs(value.evalf(5)))
    except (TypeError, ValueError, OverflowError):
        return 10.0**digits
