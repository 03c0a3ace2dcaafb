"""Whether a reference answer can be compared with at all; checked for every row when a data set loads."""

from __future__ import annotations

import re
from functools import lru_cache

from rlhf_plugin_verifiers.maths.answer import stated_answer
from rlhf_plugin_verifiers.maths.text import canonical

_SIMPLE = re.compile(r"-?\d{1,30}(?:\.\d+)?(?:/\d{1,30})?|[A-Za-z]|-?\\frac\{-?\d{1,30}\}\{\d{1,30}\}")


@lru_cache(maxsize=100_000)
def why_unusable(gold: str) -> str | None:
    """Why no completion could equal a reference answer; None if one could.

    Only what is cheap is looked at: emptiness, braces, division by zero, and dangling commands. Nothing is evaluated,
    so that a reference that explodes in sympy cannot stop a data set from loading.
    """
    if not gold.strip():
        return "the reference answer is empty"
    stated = stated_answer(gold)
    latex = stated.latex if stated else gold
    short = canonical(latex)
    if not short:
        return f"the reference answer {gold[:60]!r} holds nothing to compare with"
    if _SIMPLE.fullmatch(short):
        return "the reference answer divides by zero" if re.search(r"(?:/|\}\{)0+\}?$", short) else None
    if re.search(r"\\(?:boxed|fbox)\s*\{", gold) and stated is None:
        return f"the box of the reference answer is never closed: {gold[-60:]!r}"
    return _unbalanced(short)


def _unbalanced(latex: str) -> str | None:
    depth = 0
    for match in re.finditer(r"\\[{}]|[{}]", latex):
        depth += (match[0] == "{") - (match[0] == "}")
        if depth < 0:
            break
    if depth:
        return f"the braces of the reference answer do not match: {latex[:60]!r}"
    if re.search(r"\\(?:frac|sqrt|text|boxed)$|[+*/^_=]$", latex):
        return f"the reference answer breaks off: {latex[-60:]!r}"
    return None
