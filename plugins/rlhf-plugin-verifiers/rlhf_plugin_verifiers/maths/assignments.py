"""Several values that are stated by name, as in ``x = 1, y = 2``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rlhf_plugin_verifiers.maths.text import canonical

MAX_LENGTH = 2000
"""Characters; a longer answer is compared in other ways only."""

Same = Callable[[str, str], bool]
"""``same(reference, stated)``: whether two values are equal."""

_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{(?:cases|aligned|align\*?|array|gathered)\}(?:\{[lcr|]*\})?|\\left\\?[{.]")
_BETWEEN = re.compile(r"\\\\|\\q?quad\b|[,;]|\\(?:text|textrm|mathrm)\{\s*,?\s*(?:and|or)\s*\}|\b(?:and|or)\b")
_ASSIGNED = re.compile(r"\s*([A-Za-z](?:_\{?\w{1,4}\}?)?|\\[A-Za-z]{2,8}(?:_\{?\w{1,4}\}?)?)\s*=(.*)", re.DOTALL)


class Assigned(NamedTuple):
    """One named value.

    Example:
        Assigned("x", "\\\\frac{1}{2}")
    """

    name: str
    value: str


def assignments(latex: str) -> list[Assigned]:
    """The named values of an answer that consists of two or more of them, otherwise none.

    Example:
        >>> assignments(r"x = 1 \\text{ and } y = (2, 3)")
        [Assigned(name='x', value='1'), Assigned(name='y', value='(2, 3)')]
    """
    if latex.count("=") < 2 or len(latex) > MAX_LENGTH:
        return []
    items: list[str] = []
    for item in _split(_ENVIRONMENT.sub(" ", latex).replace("&", " ")):
        if "=" not in item and items:
            items[-1] += "," + item  # the comma belonged to the value: 1,000
        elif item.strip():
            items.append(item)
    matches = [_ASSIGNED.fullmatch(item) for item in items]
    named = [Assigned(canonical(m[1]), m[2].strip()) for m in matches if m is not None and "=" not in m[2]]
    return named if len(named) == len(items) > 1 else []


def same_assignments(reference: str, stated: str, same: Same) -> bool:
    """Whether two answers state the same values; at least one of them names several.

    Names may be left out on one side: values of different variables are then compared in alphabetical order of their
    names or as written, those of one variable (``x = 1, x = 2``, ``x_1 = 1, x_2 = 2``) in any order.

    Args:
        reference: LaTeX without delimiters.
        stated: the same.
        same: compares two values.
    """
    if max(len(reference), len(stated)) > MAX_LENGTH:
        return False
    ours, theirs = assignments(reference), assignments(stated)
    if ours and theirs:
        return len(ours) == len(theirs) and _matched(ours, theirs, same)
    if theirs:
        return _values(theirs, reference, same)
    return bool(ours) and _values(ours, stated, lambda a, b: same(b, a))


def _matched(ours: Sequence[Assigned], theirs: Sequence[Assigned], same: Same) -> bool:
    """Whether each value has its own of the same name on the other side."""
    remaining = list(theirs)
    for name, value in ours:
        equal = next((t for t in remaining if t.name == name and same(value, t.value)), None)
        if equal is None:
            return False
        remaining.remove(equal)
    return True


def _values(named: Sequence[Assigned], plain: str, same: Same) -> bool:
    """Whether a plain list or tuple holds the named values."""
    plain = plain.strip()
    is_set, is_tuple = plain.startswith("\\{"), plain[:1] == "("
    inside = (
        plain[2:-2] if is_set and plain.endswith("\\}") else plain[1:-1] if is_tuple and plain[-1] == ")" else plain
    )
    items = [item.strip() for item in _split(inside)]
    if "=" in plain or len(items) != len(named):
        return False
    values = [value for _, value in named]
    orders = [values, [value for _, value in sorted(named)]]
    one_variable = len({re.split("_", name, maxsplit=1)[0] for name, _ in named}) == 1
    if is_set or (one_variable and not is_tuple):
        return _matched([Assigned("", item) for item in items], [Assigned("", value) for value in values], same)
    return any(all(map(same, items, order)) for order in orders)


def _split(latex: str) -> list[str]:
    """Parts between separators that stand in no bracket."""
    parts, start = [], 0
    for match in _BETWEEN.finditer(latex):
        before = latex[: match.start()]
        if sum(map(before.count, "([{")) == sum(map(before.count, ")]}")):
            parts.append(latex[start : match.start()])
            start = match.end()
    return [*parts, latex[start:]]
