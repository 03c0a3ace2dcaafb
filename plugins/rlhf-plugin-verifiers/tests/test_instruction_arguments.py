"""Arguments of instructions: a row with wrong ones is refused when it is read, with its line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.rewards import Sample
from rlhf_plugin_verifiers.instructions.arguments import why_wrong
from rlhf_plugin_verifiers.instructions.config import IFEvalConfig
from rlhf_plugin_verifiers.instructions.verifier import checks

REQUEST = {"prompt_to_repeat": "Tell me why the sky is so blue today"}
FIRST = {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "so"}
RIGHT: dict[str, dict[str, object]] = {
    "keywords:existence": {"keywords": ["oak"]},
    "keywords:frequency": {"keyword": "oak", "frequency": 2, "relation": "at least"},
    "keywords:letter_frequency": {"letter": "b", "let_frequency": 2, "let_relation": "less than"},
    "language:response_language": {"language": "fr"},
    "length_constraints:number_words": {"num_words": 3, "relation": "at least"},
    "length_constraints:nth_paragraph_first_word": FIRST,
    "detectable_format:multiple_sections": {"section_spliter": "Day", "num_sections": 2},
    "change_case:capital_word_frequency": {"capital_frequency": 2, "capital_relation": "at least"},
    "count:word_count_range": {"min_words": 2.0, "max_words": 3.0},
    "count:words_japanese": {"N": 2.0},
    "ratio:overlap": {"reference_text": "abcdef", "percentage": 100.0},
    "sentence:increment": {"small_n": 1.0},
    "words:keywords_specific_position": {"keyword": "oak", "n": 2, "m": 2},
    "format:list": {"sep": "-"},
    "format:options": {"options": "north, south"},
    "repeat:repeat_change": {"prompt_to_repeat": "Say it now"},
    "repeat:repeat_span": {**REQUEST, "n_start": 3, "n_end": 6},
}


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("length_constraints:number_words", {"num_words": "3", "relation": "less than"}, "'num_words' = '3' (str)"),
        ("length_constraints:number_words", {"num_words": 3, "relation": "fewer than"}, "'relation' = 'fewer than'"),
        ("length_constraints:number_words", {"num_words": True, "relation": "less than"}, "'num_words' = True (bool)"),
        ("length_constraints:number_words", {"num_words": 2.5, "relation": "less than"}, "a whole number from 1"),
        ("keywords:existence", {"keywords": "oak"}, "'keywords' = 'oak' (str), which must be a list of texts"),
        ("keywords:existence", {"keywords": ["oak", 3]}, "a list of texts"),
        ("keywords:forbidden_words", {"forbidden_words": []}, "a list of texts"),
        (
            "keywords:letter_frequency",
            {"letter": "ab", "let_frequency": 1, "let_relation": "at least"},
            "one character",
        ),
        ("language:response_language", {"language": "klingon"}, "a language that langdetect knows"),
        ("sentence:keyword", {"word": "oak", "N": 0}, "a whole number from 1"),
        ("ratio:stop_words", {"percentage": 120}, "a number from 0 to 100"),
        ("ratio:stop_words", {"percentage": float("nan")}, "a number from 0 to 100"),
        ("count:word_count_range", {"min_words": 5, "max_words": 3}, "more than 'max_words' = 3"),
        (
            "length_constraints:nth_paragraph_first_word",
            {**FIRST, "nth_paragraph": 3},
            "more than 'num_paragraphs' = 2",
        ),
        ("repeat:repeat_span", {**REQUEST, "n_start": 3, "n_end": 40}, "beyond the last word of 'prompt_to_repeat'"),
        ("startend:end_checker", {"end_phrase": " "}, "'end_phrase' = ' '"),
        ("startend:end_checker", {"end_phrase": ["a"]}, "must be a text"),
    ],
)
def test_arguments_of_a_wrong_type_are_refused_when_rows_are_read(
    name: str, arguments: dict[str, object], why: str, sample: Callable[..., Sample]
) -> None:
    row = sample("a", instruction_id_list=[name], kwargs=[arguments])
    refusal = IFEvalConfig().check_prompt(row.prompt) or ""
    assert name in refusal
    assert why in refusal


@pytest.mark.parametrize("kwargs", [["a"], [3], [["num_words"]]])
def test_kwargs_that_are_no_object_are_refused(kwargs: list[object], sample: Callable[..., Sample]) -> None:
    row = sample("a", instruction_id_list=["punctuation:no_comma"], kwargs=kwargs)
    assert "not an object" in (IFEvalConfig().check_prompt(row.prompt) or "")


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text("a1 ", max_size=3),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=3,
)


@given(st.data())
def test_arguments_that_are_not_refused_give_a_verdict(data: st.DataObject) -> None:
    """Whatever a row holds: it is refused when it is read, or every response gets a verdict."""
    name = data.draw(st.sampled_from(sorted(RIGHT)))
    arguments = dict(RIGHT[name])
    arguments[data.draw(st.sampled_from(sorted(arguments)))] = data.draw(ANY)
    for reference in ("text", "published"):
        try:
            check = checks([name], [arguments], reference)[0]  # type: ignore[arg-type]
        except ValueError:
            continue
        assert not why_wrong(arguments)
        assert check("A dog. It is 3.") in (True, False)


def test_a_row_of_a_wrong_type_is_named_before_the_run(command: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    row = {"prompt": "Hi", "instruction_id_list": ["length_constraints:number_words"]}
    kwargs = [[{"num_words": n, "relation": "less than"}] for n in (3, "3")]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({**row, "kwargs": k}) for k in kwargs))
    code, output = command(
        *("train", "--algo", "grpo", "--reward", "ifeval", "--dataset", tmp_path / "rows.jsonl", "--dry-run"),
    )
    assert code == 2
    assert "rows.jsonl, line 2" in output
    assert "num_words" in output
