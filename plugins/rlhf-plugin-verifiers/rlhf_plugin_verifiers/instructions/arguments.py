"""What the arguments of an instruction must be, so that a row with wrong ones is refused when it is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlhf_plugin_verifiers.instructions.lexicon import words

_FROM_1 = words("""
N n m i n_sent n_words nth_paragraph num_words num_sentences num_paragraphs num_sections
num_bullets num_highlights num_placeholders
""")
_FROM_0 = words("frequency let_frequency capital_frequency small_n min_words max_words n_start n_end")
_RELATIONS = ("less than", "at least")
_QUANTIFIERS = ("at least", "at most", "around")
_IN_ORDER = (("nth_paragraph", "num_paragraphs"), ("min_words", "max_words"), ("n_start", "n_end"))


def why_wrong(arguments: Mapping[str, Any], rule_of: Mapping[str, str] | None = None) -> str:
    """What is wrong with an instruction's arguments by name, as the end of a sentence; "" if nothing is. ``rule_of``
    gives an argument the rule of another name."""
    for name, value in arguments.items():
        if value is None:
            return f"lacks '{name}' in its kwargs"
        holds, must = _RULES.get((rule_of or {}).get(name, name), (_is_text, "a text"))
        if not holds(value):
            return f"has '{name}' = {value!r} ({type(value).__name__}), which must be {must}"
    for low, high in _IN_ORDER:
        if low in arguments and arguments[low] > arguments[high]:
            return f"has '{low}' = {arguments[low]}, which is more than '{high}' = {arguments[high]}"
    return ""


def _is_number(value: Any, low: float, high: float = math.inf) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high and value < math.inf


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(map(_is_text, value))


@cache
def _languages() -> frozenset[str]:
    """The codes that the detector knows."""
    spec = find_spec("langdetect")
    folders = spec.submodule_search_locations if spec else None
    return frozenset(p.name for folder in folders or () for p in Path(folder, "profiles").iterdir())


_RULES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(_FROM_1, (lambda v: _is_number(v, 1) and v == int(v), "a whole number from 1")),
    **dict.fromkeys(_FROM_0, (lambda v: _is_number(v, 0) and v == int(v), "a whole number from 0")),
    **dict.fromkeys(
        ("relation", "let_relation", "capital_relation"), (_RELATIONS.__contains__, "one of " + str(_RELATIONS))
    ),
    "quantifier": (_QUANTIFIERS.__contains__, "one of " + str(_QUANTIFIERS)),
    **dict.fromkeys(("keywords", "keyword_list", "forbidden_words"), (_is_list, "a list of texts")),
    "percentage": (lambda v: _is_number(v, 0, 100), "a number from 0 to 100"),
    "letter": (lambda v: _is_text(v) and len(v.strip()) == 1, "one character"),
    "language": (lambda v: _is_text(v) and v in _languages(), "a language that langdetect knows, by its code"),
}
"""By argument: what holds of it, in code and in words."""
