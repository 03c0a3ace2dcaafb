"""Whether two answers are the same, by text, as numbers, and by math-verify (see ``maths.library``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

from rlhf_plugin_verifiers.maths.answer import FinalAnswer
from rlhf_plugin_verifiers.maths.bounds import MAX_LENGTH
from rlhf_plugin_verifiers.maths.library import parse, same_value
from rlhf_plugin_verifiers.maths.text import canonical, own_part, plain_digits, unspaced_numbers, without_plus
from rlhf_plugin_verifiers.number_forms import numbers, plain

TAIL = 4000
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
    """One pair. An answer that cannot be compared is not equal."""
    try:
        sets = rules.relations_as_sets
        return same_value(gold, stated, digits=rules.digits, strict=rules.strict_variables, sets=sets)
    except (MemoryError, RecursionError):
        raise
    except Exception:
        return False


@lru_cache(maxsize=512)
def parsed(stated: FinalAnswer | None, text: str, targets: tuple[str, ...], reference: bool = False) -> tuple[Any, ...]:
    """A stated answer as sympy expressions; without one, what math-verify finds of ``targets`` ``latex``, ``expr``."""
    if stated is None:
        return parse(unspaced_numbers(without_plus(plain_digits(own_part(text))[-TAIL:])), targets, reference=reference)
    if len(stated.latex) > MAX_LENGTH:
        return ()
    latex = unspaced_numbers(stated.latex)
    if not stated.boxed and _NUMBER.fullmatch(latex):
        return parse(latex, ("expr",), reference=reference)
    values = parse(f"${latex}$", ("latex",), reference=reference)
    return values or (parse(latex, ("expr",), reference=reference) if len(numbers(plain(latex))) == 1 else ())
