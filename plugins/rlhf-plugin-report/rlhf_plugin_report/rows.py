"""Which rows of a trace the page can show: a field of another kind makes a row one that is counted and left out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from rlhf_plugin_report.turns import is_turn

PER_TOKEN = ("logprobs", "trainer_logprobs", "old_logprobs", "ref_logprobs", "entropies", "advantages", "values")
"""Lists ``[T]`` of a completion; ``returns`` and ``mask`` besides."""
LARGEST = 2**53
"""Of JavaScript's integers."""


def is_number(value: Any) -> bool:
    """Whether it is a number that a chart can hold; NaN and infinity are gaps in it."""
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST)


def is_count(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < LARGEST


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_mapping(value: Any) -> bool:
    return type(value) is dict or isinstance(value, Mapping)


def _is_list(of: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(of, value))


def _is_stretch(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(map(is_count, value[:2])) and _is_text(value[2])


def _is_version_span(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(map(is_count, value))


def _numbers(value: Any) -> bool:
    """Whether it is a list of numbers and None; of floats alone their types say so."""
    if not isinstance(value, list):
        return False
    return {*map(type, value)} <= {float, type(None)} or all(one is None or is_number(one) for one in value)


KINDS: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("step", "tokens"), is_count),
    **dict.fromkeys(("text", "prompt"), _is_text),
    **dict.fromkeys(("score", "advantage"), is_number),
    **dict.fromkeys(("parts", "info"), _is_mapping),
    **dict.fromkeys((*PER_TOKEN, "returns"), _numbers),
    "completion_ids": _is_list(is_count),
    "segments": _is_list(_is_stretch),
    "versions": _is_list(_is_version_span),
    "turns": _is_list(is_turn),
    "mask": _is_list(lambda value: value in (0, 1)),
    "media": _is_list(_is_mapping),
}
ROW, COMPLETION, EXAMPLE = ("step", "prompt_id", "prompt"), ("text", "tokens"), ("id", "tokens")
"""What a prompt's row, a completion and an example of data must have."""


def fits(row: Mapping[str, Any], needed: Collection[str]) -> bool:
    """Whether a row has what is needed, and every field of a known name is of its kind; None is one that is missing."""
    for key in needed:
        if row.get(key) is None:
            return False
    for key, surely, is_kind in _checks(tuple(row)):
        value = row[key]
        if type(value) is not surely and value is not None and not is_kind(value):
            return False
    return True


SURELY: Mapping[str, type] = {"text": str, "prompt": str, "score": float, "advantage": float, "parts": dict}
"""Where a value of exactly this type needs no further look."""


@lru_cache(1024)
def _checks(keys: tuple[str, ...]) -> Sequence[tuple[str, type | None, Callable[[Any], bool]]]:
    return [(key, SURELY.get(key), KINDS[key]) for key in keys if key in KINDS]
