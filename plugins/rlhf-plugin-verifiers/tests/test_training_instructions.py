"""The instructions of RLVR training data: a response that follows each, and one that does not."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from rlhf_plugin_verifiers.instructions import lexicon
from rlhf_plugin_verifiers.instructions.verifier import checks

ASK = "Name a colour."
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("rlvr:verify_keywords", {"keyword_list": ["art", "sea"]}, "The Sea is art.", "The sea will start."),
    ("rlvr:verify_keyword_frequency", {"word": "sun", "N": 2}, "Sun, sun and sunshine", "sun sun sun"),
    ("rlvr:validate_forbidden_words", {"forbidden_words": ["art"]}, "We start.", "It is Art."),
    ("rlvr:verify_letter_frequency", {"letter": "e", "N": 2}, "Eee", "eee"),
    (
        "rlvr:validate_response_language",
        {"language": "de"},
        "Das ist ein schöner Tag am See.",
        "A fine day, is it not?",
    ),
    ("rlvr:verify_paragraph_count", {"N": 2}, "One.\n* * *\nTwo.", "One.\n* * *\n"),
    ("rlvr:validate_word_constraint", {"N": 20, "quantifier": "around"}, "so " * 22, "so " * 23),
    ("rlvr:verify_sentence_constraint", {"N": 2, "quantifier": "at most"}, "Yes. No.", "Yes. No. Well."),
    ("rlvr:validate_paragraphs", {"N": 2, "first_word": "two", "i": 2}, "One is.\n\nTwo is.", "Two is.\n\nOne is."),
    ("rlvr:verify_postscript", {"postscript_marker": "P.S."}, "Dear all.\n\nP.S. More.", "Dear all.\n\nP.S."),
    ("rlvr:validate_placeholders", {"N": 2}, "[name] at [place]", "[name] []"),
    ("rlvr:verify_bullet_points", {"N": 2}, "* one\n* two", "* one\n---"),
    ("rlvr:validate_title", {}, "<<Joy>>\nIt is.", "<<>>"),
    ("rlvr:validate_choice", {"options": ["Option A", "Option B"]}, "I take Option B.", "Option A, or Option B."),
    ("rlvr:validate_highlighted_sections", {"N": 2}, "*one* and *two*", "2 * 3 * 4 * 5"),
    ("rlvr:validate_sections", {"N": 2, "section_splitter": "Part"}, "Part 1\nx\nPart 2\ny", "Part 1\nPart 2\nPart 3"),
    ("rlvr:validate_json_format", {}, '{"a": 1}', "3"),
    ("rlvr:validate_repeat_prompt", {"original_prompt": ASK}, f"{ASK} Blue.", ASK),
    ("rlvr:validate_two_responses", {}, "Red.\n******\nBlue.", "Red.\n******\nred"),
    ("rlvr:validate_uppercase", {}, "BLUE.", "3"),
    ("rlvr:validate_lowercase", {}, "blue.", "Blue."),
    ("rlvr:validate_frequency_capital_words", {"N": 2, "quantifier": "at least"}, "A NEW day", "New DAY"),
    ("rlvr:validate_end", {"end_phrase": "art it is"}, "So: art it is", "Smart it is"),
    ("rlvr:validate_quotation", {}, '"All of it."', '"a" and "b"'),
    ("rlvr:validate_no_commas", {}, "No comma.", "One, two"),
    (
        "copy:repeat_phrase",
        {"phrase": "a b c", "small_n": 2},
        "So a x c and a y c.",
        "So a x c and a b c.",
    ),
    ("copy:copy", {"prompt_to_repeat": ASK}, f" {ASK}\n", f"{ASK} Blue."),
    ("copy:copying_simple", {"prompt_to_repeat": ASK}, ASK, ASK.lower()),
    ("copy:copying_multiple", {"prompt_to_repeat": ASK, "N": 2}, f"{ASK} ****** {ASK}", ASK),
    ("new:copy_span_idx", {"prompt_to_repeat": ASK, "n_start": 7, "n_end": 12}, "colour", "a colour"),
    ("detectable_format:sentence_hyphens", {}, "It is.-So it is.", "It is. So it is."),
    ("keywords:no_adjacent_consecutive", {}, "a cat eats", "a big dog"),
    ("detectable_format:square_brackets", {}, "[It] [is].", "[It is]"),
    ("keywords:word_once", {"keyword": "sun"}, "The sun and the sun.", "Sunshine."),
    (
        "keywords:word_count_different_numbers",
        {"keyword": "sun", "frequency": 2, "relation": "at least"},
        "sun sun",
        "sun sun sun",
    ),
    ("keywords:exclude_word_harder", {"keyword": "sun"}, "Sunshine.", "Hot sun."),
    ("paragraphs:paragraphs", {}, "One.\n***\nTwo.", "One.\n***\n***\nTwo."),
    ("paragraphs:paragraphs2", {}, "One.\n\nTwo.", "One.\nTwo."),
    ("first_word:first_word_sent", {"first_word": "so"}, "So it is. So what.", "So it is. What."),
    ("first_word:first_word_answer", {"first_word": "So"}, "so, yes", "Yes, so"),
    ("last_word:last_word_sent", {"last_word": "end"}, "An end. The END!", "An end. No."),
    ("last_word:last_word_answer", {"last_word": "end"}, "The end.", "The end is"),
    ("detectable_format:bigram_wrapping", {}, "<<I am>> <<at home>> now", "<<I am>> at home now"),
    ("punctuation:punctuation_dot", {}, "Yes!", "Yes."),
    ("punctuation:punctuation_exclamation", {}, "Yes.", "Yes!"),
    ("count:lowercase_counting", {"N": 1}, "It Is so", "it is so"),
    ("letters:letter_counting", {"N": 4, "relation": "less than"}, "a b c 1", "a b c d"),
    (
        "letters:letter_counting2",
        {"letter": "s", "let_frequency": 2, "let_relation": "at least"},
        "Sos",
        "so",
    ),
    (
        "count:counting_composition",
        {"n_sent": 1, "n_words": 2},
        "It is.\n* * *\nIt was.\n***\nWe go.",
        "It is.\n***\nIt was.\n***\nWe.",
    ),
    ("count:count_unique", {}, "One two three.", "One two one."),
    ("count:count_increment_word", {"keyword1": "a", "keyword2": "b"}, "b a b", "b a a"),
    ("keywords:palindrome", {}, "A level is good.", "I see a cat."),
    ("keywords:keyword_specific_position", {"keyword": "two", "n": 2, "m": 1}, "One. Two.", "Two. One."),
    ("keywords:start_end", {}, "So it is so", "So it is so."),
]


def test_every_training_instruction_has_a_case() -> None:
    table = tomllib.loads(Path(lexicon.__file__).with_name("instructions.toml").read_text())["published"]
    assert {n for n, place in table.items() if place.startswith(("rlvr.", "iftrain."))} == {n for n, *_ in CASES}
    assert len(CASES) == 25 + 29


@pytest.mark.parametrize(("name", "arguments", "good", "bad"), CASES, ids=[c[0] for c in CASES])
def test_it_tells_a_response_that_follows_from_one_that_does_not(
    name: str, arguments: dict[str, Any], good: str, bad: str
) -> None:
    (check,) = checks([name], [arguments])
    assert check(good) is True
    assert check(bad) is False


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("rlvr:verify_bullets", {"N": 1}, "did you mean 'rlvr:verify_bullet_points'"),
        ("rlvr:verify_bullet_points", {}, "lacks 'N'"),
        ("rlvr:validate_word_constraint", {"N": 3, "quantifier": "about"}, "one of"),
        ("rlvr:verify_keywords", {"keyword_list": "art"}, "a list of texts"),
        ("copy:copying_multiple", {"prompt_to_repeat": ASK, "N": 0}, "a whole number from 1"),
    ],
)
def test_wrong_arguments_are_refused(name: str, arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        checks([name], [arguments])


def test_a_count_of_none_is_taken_as_published() -> None:
    (check,) = checks(["rlvr:verify_letter_frequency"], [{"letter": "z", "N": 0}])
    assert check("no such letter")
