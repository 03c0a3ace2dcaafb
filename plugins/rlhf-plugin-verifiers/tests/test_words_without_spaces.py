"""Counts of words in Chinese and Japanese text: by character, and as published where figures are compared."""

from __future__ import annotations

import re
from typing import Any, Literal

import pytest

from rlhf_plugin_verifiers.instructions.verifier import checks


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("今天天气很好。", 6),
        ("今日はGPUを2台買う", 9),
        ("カタカナ・ｶﾅ", 6),
        ("오늘은 날씨가 좋다", 3),
        ("𠮷野家 isn't well-known", 5),
        ("人々、時々", 4),
        ("नमस्ते दुनिया", 2),
        ("தமிழ் மொழி", 2),
        ("e\u0301tude ne\u0301e", 2),
        ("می\u200cخواهم بروم", 2),
    ],
)
def test_words_without_spaces_are_counted_by_character_and_as_published_in_benchmarks(text: str, count: int) -> None:
    at_least = {"num_words": count, "relation": "at least"}
    exactly = {"min_words": float(count), "max_words": float(count)}
    assert follows("length_constraints:number_words", at_least, text)
    assert not follows("length_constraints:number_words", {**at_least, "relation": "less than"}, text)
    assert not follows("length_constraints:number_words", {**at_least, "num_words": count + 1}, text)
    assert follows("count:word_count_range", exactly, text)
    if (published := len(re.findall(r"\w+", text))) != count:
        assert not follows("count:word_count_range", exactly, text, "published")
    of_published = {"num_words": published, "relation": "at least"}
    assert follows("length_constraints:number_words", of_published, text, "published")
    assert not follows(
        "length_constraints:number_words", {**of_published, "num_words": published + 1}, text, "published"
    )


def follows(name: str, arguments: dict[str, Any], text: str, reference: Literal["published", "text"] = "text") -> bool:
    (check,) = checks([name], [arguments], reference)
    return check(text)
