r"""The grammar of reference answers of the maths verifiers: a formula, a few words, or a solution that boxes them.

.. code-block:: text

    reference = answer | solution with \boxed{answer} | solution with "#### answer"
    answer    = option | formula with at most MAX_WORDS words outside \text{}, with or without dollars
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from rlhf_plugin_verifiers.maths.answer import boxed_answer
from rlhf_plugin_verifiers.maths.choice import option
from rlhf_plugin_verifiers.maths.text import boxes, canonical, last_box_is_open

MAX_WORDS = 4
"""Of a reference that is not in ``\\text{}``: "no real solutions", "5 square metres"."""
_SIMPLE = re.compile(r"-?\d{1,30}(?:\.\d+)?(?:/\d{1,30})?|[A-Za-z]|-?\\frac\{-?\d{1,30}\}\{\d{1,30}\}")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_TEXT = re.compile(r"\\(?:text\w*|mathrm|mathbf|operatorname|begin|end|mbox)\s*\{[^{}]*\}")
_NO_WORDS = frozenset(["and", "sin", "cos", "tan", "log", "sqrt", "exp", "max", "min", "gcd", "lcm", "mod", "det"])
_SENTENCE = re.compile(r"[\w)}$][.!?]\s+[A-Z][a-z]|[?\u201c\u201d\"`]|:\s+[A-Za-z]{3}")
_CODE = re.compile(r"(?<!\\)\b[A-Za-z]{3,}_[A-Za-z]{3}|'\w{3,}'|==|</?[a-z]{3,}>")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


@lru_cache(maxsize=100_000)
def why_unusable(gold: str) -> str | None:
    """Why no completion could equal a reference answer (see the module's grammar; division by zero), or None. Nothing
    is evaluated, so that no reference stops a data set from loading."""
    short = gold.strip()
    if not short:
        return "the reference answer is empty"
    if _CONTROL.search(short):
        return f"the reference answer {gold[:60]!r} holds a control character; JSON wants '\\\\\\\\frac' for '\\\\frac'"
    if _is_json(short):
        return f"the reference answer {gold[:60]!r} is JSON, not an answer"
    if last_box_is_open(short):
        return f"the box of the reference answer is never closed: {gold[-60:]!r}"
    answer = boxed_answer(short) if boxes(short) else short.rpartition("####")[2].strip()
    if not answer or not canonical(answer):
        return f"the reference answer {gold[:60]!r} holds nothing to compare with"
    if option(answer) is not None:
        return None
    return _why_no_formula(answer)


def _is_json(text: str) -> bool:
    """Whether a text is a JSON object, or a list with more in it than numbers, or begins like one."""
    if text[0] not in "{[":
        return False
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return re.match(r"[{\[]\s*(?:[{\[]\s*)*[\"']\w*[\"']\s*[:,\]}]", text) is not None
    flat = json.dumps(value)
    return isinstance(value, dict) or any(mark in flat for mark in ('"', "{", "true", "false", "null"))


def _why_no_formula(answer: str) -> str | None:
    short = canonical(answer)
    if _SIMPLE.fullmatch(short):
        return "the reference answer divides by zero" if re.search(r"(?:/|\}\{)0+\}?$", short) else None
    plain = _TEXT.sub(" ", answer)
    words = [word for word in _WORD.findall(plain) if word.lower() not in _NO_WORDS]
    if len(words) > MAX_WORDS or _SENTENCE.search(plain):
        return f"the reference answer {answer[:60]!r} is prose; give the answer alone, or box it: \\boxed{{...}}"
    if _CODE.search(plain):
        return f"the reference answer {answer[:60]!r} is code or markup, not an answer"
    dollars = len(re.findall(r"(?<!\\)\$", answer))
    if dollars % 2 and not re.fullmatch(r"-?\$\s?-?[\d.,][^+=^_\\]*", answer):
        return f"a dollar sign of the reference answer is never closed: {answer[:60]!r}"
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
