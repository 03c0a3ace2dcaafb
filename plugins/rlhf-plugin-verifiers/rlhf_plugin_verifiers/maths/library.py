"""math-verify with bounded work and exact comparison.

These are private copies of its two modules, in which the functions that parse and that compare two values are ours, so
that nothing reaches sympy unbounded and every single value in a set, tuple, interval, matrix or equation is compared
exactly; the installed modules stay as they are. Its own time limit (SIGALRM, a late answer is wrong) is off: these
functions run in a worker that is killed at its deadline.
"""

from __future__ import annotations

import logging
from fractions import Fraction
from functools import partial
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

from sympy import Basic, Eq, Expr, Float, I, Interval, MatrixBase, MatrixExpr, Number, Pow, Rational, Union, nsimplify
from sympy.core.relational import Relational

from rlhf_plugin_verifiers.maths.bounds import TooMuch, check_size, check_text, is_open_ended, without_double_braces
from rlhf_plugin_verifiers.number_forms import Number as WrittenNumber
from rlhf_plugin_verifiers.number_forms import close, same_number

PRECISION = 50
"""Decimal digits to which numbers that are not fractions are compared."""
MAX_OPERATIONS = 60
"""Of expressions that are simplified or solved; longer ones are compared at points."""
MAX_DEGREE = 12
"""Of equations that are solved."""
POINTS = (Rational(137, 100), Rational(-73, 90), Rational(2718, 1000), Rational(311, 977))
"""Where expressions with variables are compared."""
BUDGET = 6000
"""Characters that are parsed of one text, all tries together."""


def _private(name: str) -> ModuleType:
    spec = find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.logger = logging.getLogger("rlhf_plugin_verifiers.math_verify")  # type: ignore[attr-defined]
    module.logger.setLevel(logging.ERROR)
    return module


parser: Any = _private("math_verify.parser")
grader: Any = _private("math_verify.grader")
_latex2sympy, _parse_expr, _simplify, _solve = parser.latex2sympy, parser.parse_expr, grader.simplify, grader.solve
_compare_relational = grader.sympy_compare_relational
_last_side = parser.get_last_eq
_characters_left = [BUDGET]


def parse(text: str, targets: tuple[str, ...], *, reference: bool = False) -> tuple[Any, ...]:
    """What math-verify reads of a text as ``latex`` or ``expr``, as sympy values that nothing has evaluated. Of a chain
    of equations that does not parse, the last side is read of a ``reference`` only."""
    parser.get_last_eq = _last_side if reference else str
    parser.parse_latex_cached.cache_clear()
    _characters_left[0] = BUDGET
    kinds = {"latex": parser.LatexExtractionConfig(), "expr": parser.ExprExtractionConfig()}
    return tuple(parser.parse(text, [kinds[t] for t in targets], parsing_timeout=None))


def _spend(text: str) -> None:
    _characters_left[0] -= len(text) + 20
    if _characters_left[0] < 0:
        raise TooMuch(f"more than {BUDGET} characters of formulas")


def _bounded_latex(latex: str, **options: Any) -> Any:
    latex = without_double_braces(latex)
    _spend(latex)
    check_text(latex)
    value = _latex2sympy(latex, **options)
    check_size(value)
    return value


def _bounded_expr(text: str, **options: Any) -> Any:
    _spend(text)
    check_text(text)
    value = _parse_expr(text, **options)
    check_size(value)
    return value


def same_value(gold: Any, stated: Any, *, digits: int, strict: bool, sets: bool) -> bool:
    """math-verify's answer for two parsed values, either of which may be text."""
    if is_open_ended(gold) or is_open_ended(stated):
        return bool(gold == stated)
    kinds = [isinstance(v, Interval | Union) - isinstance(v, Expr) for v in (gold, stated)]
    if sum(kinds) == 0 and any(kinds):
        return False  # a number is no interval
    return grader.verify(
        [gold],
        [stated],
        float_rounding=digits,
        strict=strict,
        allow_set_relation_comp=sets,
        timeout_seconds=None,
        raise_on_error=True,
    )


def verdict(a: Any, b: Any, digits: int) -> bool | None:
    """Whether two values are equal; None if numbers cannot tell. Values with a decimal number agree to ``digits``
    decimal places and in size, others exactly or to :data:`PRECISION` digits; variables take :data:`POINTS`."""
    if is_open_ended(a) or is_open_ended(b):
        return None
    if isinstance(a, MatrixBase | MatrixExpr) or isinstance(b, MatrixBase | MatrixExpr):
        return _same_matrix(a, b, digits)
    if not (isinstance(a, Basic) and isinstance(b, Basic)):
        return None
    symbols = sorted(a.free_symbols | b.free_symbols, key=str)
    if not symbols:
        return _same_constant(a, b, digits)
    answers = [_same_at(a, b, dict(zip(symbols, POINTS[k:] + POINTS[:k]))) for k in range(len(POINTS))]
    if len(symbols) > len(POINTS) or answers.count(None) > len(POINTS) - 2:
        return None
    return False if False in answers else True if None not in answers else None


def _same_matrix(a: Any, b: Any, digits: int) -> bool | None:
    a, b = grader.safe_sympy_doit(a), grader.safe_sympy_doit(b)
    if not (isinstance(a, MatrixBase) and isinstance(b, MatrixBase)):
        return None
    return a.shape == b.shape and all(
        grader.sympy_expr_eq(x, y, digits, 15) for x, y in zip(a.flat(), b.flat(), strict=True)
    )


def _same_constant(a: Basic, b: Basic, digits: int) -> bool | None:
    written_a, written_b = _written(a), _written(b)
    if written_a is not None and written_b is not None:
        return same_number(written_a, written_b, partial(close, digits=digits))
    rounded = a.has(Float) or b.has(Float)
    x, y = _value(a), _value(b)
    if x is None or y is None:
        return None
    if rounded and x.is_real and y.is_real:
        return close(Fraction(str(x)), Fraction(str(y)), digits)
    return _near(x, y, 12 if rounded else PRECISION - 10)


def _written(value: Basic) -> WrittenNumber | None:
    """A value that is a fraction, a decimal number, or one of these as a percentage."""
    plain: Any = grader.get_pct_val(value)
    percent = plain is not None
    plain = grader.safe_sympy_doit(plain if percent else value)
    if not isinstance(plain, Number) or not plain.is_finite:
        return None
    exact = nsimplify(plain, rational=True)
    return WrittenNumber(Fraction(exact.p, exact.q), isinstance(plain, Float) or value.has(Float), percent)


def _value(value: Basic) -> Any:
    """A constant to :data:`PRECISION` digits, None where it has no finite one."""
    number: Any = nsimplify(value, rational=True) if value.has(Float) else value
    number = grader.safe_sympy_doit(number).evalf(PRECISION)
    return number if number.is_number and number.is_finite and _numeric(number) else None


def _numeric(number: Any) -> bool:
    return all(isinstance(part, Number) for part in number.as_real_imag())


def _near(x: Any, y: Any, digits: int) -> bool:
    """Whether two numbers agree in so many leading digits; one without a digit that is certain is 0."""
    x, y = (sum(_certain(p) * u for p, u in zip(z.as_real_imag(), (1, I))) for z in (x, y))
    return bool(abs(x - y) <= max(abs(x), abs(y)) * Rational(1, 10**digits))


def _certain(part: Any) -> Any:
    return 0 if isinstance(part, Float) and part._prec <= 4 else part


def _same_at(a: Basic, b: Basic, point: dict[Any, Any]) -> bool | None:
    """Whether two expressions have one real value at a point; None where either has none."""
    x, y = (_value(e.subs(point)) for e in (a, b))
    if x is None or y is None:
        return None
    same = _near(x, y, 12 if a.has(Float) or b.has(Float) else PRECISION - 10)
    return same if same or (x.is_real and y.is_real) else None


def _same_relation(gold: Any, pred: Any, float_rounding: int, numeric_precision: int) -> bool:
    """Of two relations with the same left side only the right sides are compared: their difference could be small."""
    if type(gold) is type(pred) and isinstance(gold, Relational) and gold.lhs == pred.lhs:
        return grader.sympy_expr_eq(gold.rhs, pred.rhs, float_rounding, numeric_precision)
    return _compare_relational(gold, pred, float_rounding, numeric_precision)


def _numeric_eq(a: Any, b: Any, float_rounding: int, numeric_precision: int) -> bool:
    return verdict(a, b, float_rounding) is True


def _symbolic_eq(a: Any, b: Any) -> bool:
    """Whether the difference of two values simplifies to 0, where :func:`verdict` has not said that it does not."""
    try:
        if verdict(a, b, 6) is not None:
            return False
        difference = _bounded_simplify(a - b)
        return bool(difference.is_zero_matrix if isinstance(difference, MatrixBase) else difference.is_zero)
    except Exception:
        return False


def _bounded_simplify(value: Any) -> Any:
    return _simplify(_short(value))


def _bounded_solve(relation: Any, *symbols: Any) -> Any:
    powers: set[Any] = _short(relation).atoms(Pow)
    if any(p.exp.is_number and abs(p.exp) > MAX_DEGREE for p in powers if p.base.free_symbols):
        raise TooMuch(f"an equation of a degree above {MAX_DEGREE}")
    return _solve(relation, *symbols)


def _short(value: Any) -> Any:
    if is_open_ended(value) or (isinstance(value, Basic) and value.count_ops() > MAX_OPERATIONS):
        raise TooMuch("too long to be simplified")
    return value


def contradicts(value: Any, digits: int, *, named: bool) -> bool:
    """Whether an answer is an equation between numbers that differ, such as ``41 = 42``; ``named`` looks at the numbers
    after ``x =`` too."""
    chain = getattr(value, "_unsorted_args", value.args) if getattr(value, "func", None) is grader.And else (value,)
    equations: list[Any] = [part for part in chain if isinstance(part, Eq)]
    if not equations or (not named and equations[0].lhs.free_symbols):
        return False
    constant = [e for e in equations if not (e.lhs.free_symbols | e.rhs.free_symbols)]
    return any(verdict(e.lhs, e.rhs, digits) is not True for e in constant)


parser.latex2sympy, parser.parse_expr = _bounded_latex, _bounded_expr
grader.sympy_numeric_eq, grader.sympy_symbolic_eq = _numeric_eq, _symbolic_eq
grader.simplify, grader.solve = _bounded_simplify, _bounded_solve
grader.sympy_compare_relational = _same_relation
parser.TIMEOUT_WARNING_SHOWN = grader.TIMEOUT_WARNING_SHOWN = True
