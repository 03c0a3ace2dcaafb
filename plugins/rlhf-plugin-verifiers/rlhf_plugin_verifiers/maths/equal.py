"""Whether two answers are the same, by text, as numbers, and by math-verify, whose own time limit (SIGALRM, a late
answer is wrong) is off: these functions run in a worker that is killed at its deadline."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from rlhf_plugin_verifiers.maths.answer import MAX_ANSWER, Stated
from rlhf_plugin_verifiers.maths.text import canonical, own_part, plain_digits, unspaced_numbers, without_plus

TAIL = 10_000
"""Characters of a text without a box in which math-verify looks for an answer."""

_NUMBER = re.compile(r"-?[\d.,]*\d\s*%?")
"""As a bare number, 1,22 is a decimal; in LaTeX it would be a list."""


class Rules(NamedTuple):
    """How answers are compared; see the fields of ``MathConfig``."""

    targets: tuple[str, ...] = ("latex", "expr")
    digits: int = 6
    strict_variables: bool = True
    relations_as_sets: bool = False


def same_text(a: str, b: str) -> bool:
    """Whether two answers print alike."""
    a, b = canonical(a), canonical(b)
    return bool(a) and a == b


def equal(gold: Sequence[Any], stated: Sequence[Any], rules: Rules) -> bool:
    """Whether what two texts state (see :func:`parsed`) is mathematically the same."""
    return any(_equal(g, s, rules) for g, s in product(gold, stated))


def _equal(gold: Any, stated: Any, rules: Rules) -> bool:
    """One pair. An answer that cannot be compared is not equal; one too large for the memory is no verdict at all."""
    try:
        return verify(
            [gold],
            [stated],
            float_rounding=rules.digits,
            strict=rules.strict_variables,
            allow_set_relation_comp=rules.relations_as_sets,
            timeout_seconds=None,
            raise_on_error=True,
        )
    except MemoryError:
        raise
    except Exception:
        return False


@lru_cache(maxsize=512)
def parsed(stated: Stated | None, text: str, targets: tuple[str, ...]) -> tuple[Any, ...]:
    """A stated answer as sympy expressions; without one, what math-verify finds of ``targets`` ``latex``, ``expr``."""
    if stated is None:
        return _parse(unspaced_numbers(without_plus(plain_digits(own_part(text))[-TAIL:])), targets)
    if len(stated.latex) > MAX_ANSWER:
        return ()
    latex = unspaced_numbers(stated.latex)
    if not stated.boxed and _NUMBER.fullmatch(latex):
        return _parse(latex, ("expr",))
    return _parse(f"${latex}$", ("latex",)) or _parse(latex, ("expr",))


def _parse(text: str, targets: tuple[str, ...]) -> tuple[Any, ...]:
    for name in ("math_verify.parser", "math_verify.grader"):
        logging.getLogger(name).setLevel(logging.ERROR)
    kinds = {"latex": LatexExtractionConfig(), "expr": ExprExtractionConfig()}
    return tuple(parse(text, [kinds[t] for t in targets], parsing_timeout=None))  # pyright: ignore[reportArgumentType]
