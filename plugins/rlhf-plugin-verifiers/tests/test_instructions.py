"""Instruction following: every type with a response that follows it and one that does not, and the references."""

from __future__ import annotations

import json
import random
import re
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_core.data import read_rows
from rlhf_core.rewards import Sample, ScoreStatus
from rlhf_plugin_verifiers.instructions import lexicon
from rlhf_plugin_verifiers.instructions.config import IFBenchConfig, IFEvalConfig
from rlhf_plugin_verifiers.instructions.sentences import _candidates, sentences, word_tokens
from rlhf_plugin_verifiers.instructions.verifier import INSTRUCTIONS, checks, judge
from rlhf_testing import check_verifier

ABC26 = " ".join(f"{chr(65 + i)} word." for i in range(26))
CAPITALS = (
    "Reykjavik, Helsinki, Oslo, Tallinn, Stockholm, Riga, Moscow, Copenhagen, Vilnius, Minsk, Dublin, Berlin, "
    "Amsterdam, Warsaw, London, Brussels, Prague, Luxembourg, Paris, Vienna, Bratislava, Budapest, Vaduz, "
    "Chișinău, Bern, Ljubljana, Zagreb"
)
COUNTRIES = "\n".join(["Zimbabwe", *(f"Country {n}" for n in range(99, 47, -1))])
QUIZ = "\n".join(f"Question {n}: What {'so ' * n}?\n" + "\n".join(f"{c}) one" for c in "ABCDE") for n in range(1, 5))
CSV = "ProductID,Category,Brand,Price,Stock\n" + "\n".join(['1,"a-b",c,2,3', *["1,a,b,2,3"] * 13])
TSV = "\n".join(
    "\t".join(f'"{c}"' for c in line.split())
    for line in ("StudentID Subject Grade Semester Score", "1 a b c 2", "2 a b c 2", "3 a b c 2")
)
FIVE = {f"keyword{i}": w for i, w in enumerate(("oak", "elm", "fir", "ash", "yew"), 1)}
TREES = "oak" + " elm" * 2 + " fir" * 3 + " ash" * 5 + " yew" * 7
ENGLISH = "this is a plain english sentence about the weather"

CASES: list[tuple[str, dict[str, object], str, str]] = [
    ("keywords:existence", {"keywords": ["oak", "C++"]}, "Oak and c++", "oak and c"),
    ("keywords:frequency", {"keyword": "oak", "frequency": 2, "relation": "at least"}, "Oak oak", "oak"),
    ("keywords:forbidden_words", {"forbidden_words": ["oak"]}, "oaks", "an Oak."),
    ("keywords:letter_frequency", {"letter": "b", "let_frequency": 2, "let_relation": "less than"}, "B", "Bb"),
    ("language:response_language", {"language": "fr"}, "Le soleil brille et les oiseaux chantent.", ENGLISH),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"}, "A dog. A cat.", "Dr. Lee"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a\n***\n\n***\nb"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, "one two", "one two three"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "so"},
        "a\n\n'So, it is",
        "a\n\nSoon",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[a] [b]", "[a]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Hi\np. s. more", "Hi PS"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a\n**b**"),
    ("detectable_format:constrained_response", {}, "My answer is no.", "No."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* and *b*", "*a* and **"),
    ("detectable_format:multiple_sections", {"section_spliter": "Day", "num_sections": 2}, "Day 1 a Day 2 b", "Day 1"),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "{a: 1}"),
    ("detectable_format:title", {}, "<<a title>>", "<< >>"),
    ("combination:two_responses", {}, "a******b", "a******a"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say it"}, "say it: x", "x"),
    ("startend:end_checker", {"end_phrase": "The end."}, '"so the end."', "The end. x"),
    ("startend:quotation", {}, '"a"', '"a" b'),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"}, "OAK ELM", "OAK"),
    ("change_case:english_capital", {}, ENGLISH.upper(), ENGLISH.title()),
    ("change_case:english_lowercase", {}, ENGLISH, ENGLISH.title()),
    ("punctuation:no_comma", {}, "a b", "a, b"),
    ("count:word_count_range", {"min_words": 2.0, "max_words": 3.0}, "a b c", "a b c d"),
    ("count:unique_word_count", {"N": 2.0}, "a b", "a A."),
    ("count:conjunctions", {"small_n": 2.0}, "and, but", "and and"),
    ("count:person_names", {"N": 2.0}, "Emma met Liam", "Emma met Emma"),
    ("count:numbers", {"N": 2.0}, "1,000 and 2", "1 000 and 2"),
    ("count:pronouns", {"N": 2.0}, "She/he", "she"),
    ("count:punctuation", {}, "a. b, c! d? e; f: g?!", "a. b, c! d? e; f:"),
    ("count:words_japanese", {"N": 2.0}, "a 犬 b 42", "a 犬 b c"),
    ("count:keywords_multiple", FIVE, TREES, TREES + " yew"),
    ("ratio:stop_words", {"percentage": 50.0}, "the oak", "the an oak"),
    ("ratio:overlap", {"reference_text": "abcdef", "percentage": 100.0}, "abcde", "abcxyz"),
    ("ratio:sentence_type", {}, "A dog. A cat. Why?", "A dog. Why?"),
    ("ratio:sentence_balance", {}, "A dog. Why? Oh!", "A dog. Why?"),
    ("ratio:sentence_words", {}, "A dog. A cat. A cow.", "A dog. A cat. Cows."),
    ("sentence:alliteration_increment", {}, "Go home. Big bad cat. Six silly slow cats.", "Big bad cat. Go home."),
    ("sentence:increment", {"small_n": 1.0}, "Go. Go home. Go home now.", "Go. Go home. Go now."),
    ("sentence:keyword", {"word": "oak", "N": 2.0}, "Go. An Oak!", "An oak. Go!"),
    ("words:alphabet", {}, "Yes, zebras are", "Yes, are"),
    ("words:vowel", {}, "a cat is on", "a cat is on us"),
    ("words:consonants", {}, "stop black", "stop cat"),
    ("words:palindrome", {}, "level " * 10, "level " * 9 + "noon"),
    ("words:prime_lengths", {}, "an oak", "an oaks"),
    ("words:repeats", {"small_n": 1.0}, "a b", "a A."),
    ("words:no_consecutive", {}, "big cat", "big bat"),
    ("words:odd_even_syllables", {}, "cat table cat", "cat dog"),
    ("words:start_verb", {}, "Write it", "The dog"),
    ("words:words_position", {"keyword": "oak"}, "An oak is an oak tree.", "An oak is a tree."),
    ("words:keywords_specific_position", {"keyword": "oak", "n": 2, "m": 2}, "Go. An oak.", "Go. Oak an."),
    ("words:last_first", {}, "I see oak. Oak is old.", "I see oak. Elm is old."),
    ("words:paragraph_last_first", {}, "Oak is an oak.\n\nElm or elm", "Oak is an elm."),
    ("format:parentheses", {}, "(a [b {c (d [e])}])", "(((a)))"),
    ("format:quotes", {}, '"a \'b "c" d\' e"', "\"a 'b' c\""),
    ("format:quote_unquote", {}, '"so" he said', 'he said "so"'),
    ("format:options", {"options": "yes/no/maybe"}, "Maybe.", "Maybe not"),
    ("format:newline", {}, "a\nb.\n", "a b"),
    ("format:emoji", {}, "Hi 😀. Yo! 🎉", "Hi 😀. Yo!"),
    ("format:line_indent", {}, "a\n b\n\n  c", "a\n b\n c"),
    ("format:list", {"sep": "!?!?"}, "!?!? a !?!? b", "!?!? a"),
    ("format:thesis", {}, "<i>So</i> it is", "<i>So it is</i>"),
    ("format:sub-bullets", {}, "* a\n - b", "* a\n * b"),
    ("format:no_bullets_bullets", {}, "A dog. A cat.\n* a\n* b", "A dog.\n* a\n* b"),
    ("format:title_case", {}, "An Oak", "An oak"),
    ("format:output_template", {}, "My Answer: a My Conclusion: b Future Outlook: c", "My Answer: a"),
    ("format:no_whitespace", {}, "ab", "a b"),
    ("repeat:repeat_change", {"prompt_to_repeat": "Say it now"}, "Tell it now", "Say it now"),
    ("repeat:repeat_simple", {}, "Only output this sentence here, ignore all other requests.", "Only output this."),
    ("repeat:repeat_span", {"prompt_to_repeat": "abcdef", "n_start": 1, "n_end": 3}, "bcd", "bc"),
    ("custom:multiples", {}, "14, 21, 28, 35, 42, 49", "7, 14, 21, 28, 35, 42, 49"),
    ("custom:mcq_count_length", {}, QUIZ, QUIZ.replace("so so so so ", "")),
    ("custom:reverse_newline", {}, COUNTRIES, COUNTRIES + "\nZambia"),
    ("custom:word_reverse", {}, "eagle bald the is it", "it is the bald eagle"),
    ("custom:character_reverse", {}, "elgae dlab", "bald eagle"),
    ("custom:sentence_alphabet", {}, ABC26, ABC26.replace("B word", "C word")),
    ("custom:european_capitals_sort", {}, CAPITALS, CAPITALS.replace("Oslo, ", "")),
    ("custom:csv_city", {}, "ID,Country,City,Year,Count" + "\n1,a,b,2,3" * 7, "ID,Country,City,Year,Count\n1,a,b,2,3"),
    ("custom:csv_special_character", {}, CSV, CSV.replace("a-b", "ab")),
    ("custom:csv_quotes", {}, TSV, TSV.replace('"a"', "a")),
    ("custom:date_format_list", {}, "1805-12-02, 1815-06-18", "1805-12-02, 1815-06-31"),
]


KNOWN = {1122, 1129, 3617, 3456, 2785, 218, 1843, 3572}
"""Rows on which Google's verdicts are random (a letter that is none), were made for another wording of the row (2785),
or take a few English words for another language."""

TABLE = tomllib.loads(Path(lexicon.__file__).with_name("instructions.toml").read_text())["published"]
TRAINING = {name for name, place in TABLE.items() if place.startswith(("rlvr.", "iftrain."))}
"""Their cases are in test_training_instructions.py."""


def test_every_type_has_a_case() -> None:
    assert {name for name, *_ in CASES} == set(INSTRUCTIONS) - TRAINING
    assert (len(CASES), len(INSTRUCTIONS)) == (25 + 58, 25 + 58 + 25 + 29)


@pytest.mark.parametrize(("name", "arguments", "good", "bad"), CASES, ids=[c[0] for c in CASES])
def test_followed_and_not(name: str, arguments: dict[str, object], good: str, bad: str) -> None:
    check = checks([name], [arguments], "published")[0]
    assert check(good) is True
    assert check(bad) is False


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Mr. Lee left at 5 p.m. He was tired.", ["Mr. Lee left at 5 p.m.", "He was tired."]),
        ('He said "No." Then he left!', ['He said "No."', "Then he left!"]),
        ("Pi is 3.14 today... or so. It is.", ["Pi is 3.14 today... or so.", "It is."]),
        ("A title\n\nNo split at a line break. 1. One", ["A title\n\nNo split at a line break.", "1.", "One"]),
        ("J. Smith wrote it? Yes!", ["J. Smith wrote it?", "Yes!"]),
        ("", []),
        ("He said “No.” Then he left.", ["He said “No.”", "Then he left."]),
        ("“One.” “Two!” She said «Trois.» Yes.", ["“One.”", "“Two!”", "She said «Trois.»", "Yes."]),
        ('"Stop!" he said. "Why?" she asked.', ['"Stop!" he said.', '"Why?" she asked.']),
        ("He asked (why?) and left. “Stop!” he said.", ["He asked (why?) and left.", "“Stop!” he said."]),
        ('It reads "go home." and then it ends.', ['It reads "go home." and then it ends.']),
        ("It ended. then it began.", ["It ended.", "then it began."]),
    ],
)
def test_sentences(text: str, parts: list[str]) -> None:
    assert sentences(text) == parts


def test_sentences_end_where_the_published_pattern_ends_them() -> None:
    """The pattern of Punkt's candidates needs quadratic time; what replaces it finds the same ends."""
    pattern = re.compile(r"""(\S*[.?!])(?=([)";}\]*:@'({\[!?])|\s+(\S+))""")
    rng = random.Random(0)
    for _ in range(3000):
        text = "".join(rng.choice("ab.?! \n)\"'(") for _ in range(rng.randrange(30)))
        expected = [(m.end(), m[1], m[2], m[3]) for m in pattern.finditer(text)]
        assert [(e.position, e.token, e.after, e.following) for e in _candidates(text)] == expected, text


@pytest.mark.parametrize("piece", ["a", ".", "\n", "[", "*", ". ", " "])
def test_long_odd_texts_are_read_in_linear_time(piece: str) -> None:
    """A text of 30,000 characters that made a verdict late, and so missing, is judged at once."""
    for name in (
        "length_constraints:number_sentences",
        "detectable_content:number_placeholders",
        "detectable_format:number_bullet_lists",
        "change_case:capital_word_frequency",
    ):
        arguments, good = next((a, g) for n, a, g, _ in CASES if n == name)
        check, seconds = checks([name], [arguments])[0], []
        for length in (7_500, 30_000):
            tries = list[float]()  # the first may load what it reads with
            for _ in range(3):
                started = time.process_time()
                check(piece * (length // len(piece)))
                tries.append(time.process_time() - started)
            seconds.append(min(tries))
        assert seconds[1] < 8 * seconds[0] + 0.5, name  # quadratic: 16 times, and seconds
        assert check(good)


def test_bullets_after_many_blank_lines() -> None:
    check = checks(["detectable_format:number_bullet_lists"], [{"num_bullets": 3}])[0]
    assert check("* a\n\n\n\n\n\n* b\n \n\n\n\n- c\n\n\n")


@pytest.mark.parametrize("text", ["HELLO WORLD", "BUY NOW. SAVE MONEY. BE HAPPY.", "FAREINSIGHTS"])
def test_english_in_capitals_is_english(text: str) -> None:
    assert checks(["change_case:english_capital"], [{}])[0](text)
    assert not checks(["change_case:english_capital"], [{}])[0]("HOLA AMIGO, ME GUSTA EL QUESO")


@pytest.mark.parametrize("text", ["go home now", "no commas here", "oceanfront opulence", "dear sam, see you soon"])
def test_a_few_english_words_are_english(text: str) -> None:
    assert checks(["change_case:english_lowercase"], [{}])[0](text)
    assert not checks(["change_case:english_lowercase"], [{}])[0]("me gusta el queso")
    assert not checks(["language:response_language"], [{"language": "fr"}])[0](text)


def test_a_language_in_capitals_is_itself() -> None:
    check = checks(["language:response_language"], [{"language": "fr"}])[0]
    assert check("LE SOLEIL BRILLE ET LES OISEAUX CHANTENT")


def test_a_sentence_that_ends_within_quotes_ends_with_its_mark() -> None:
    check = checks(["ratio:sentence_type"], [{}])[0]
    assert check('He said "no." It is so. Why?')
    assert check("He said “no.” It is (so.) Is it “so?”")
    assert not check('He said "no." Why?')


def test_word_tokens() -> None:
    assert word_tokens("I CAN'T go, it's \"here\".") == (
        "I",
        "CA",
        "N'T",
        "go",
        ",",
        "it",
        "'s",
        "``",
        "here",
        "''",
        ".",
    )


def test_loose_tries_the_response_without_its_frame() -> None:
    check = checks(["startend:quotation", "keywords:forbidden_words"], [{}, {"forbidden_words": ["sure"]}])
    followed = judge('Sure:\n*"a"*\nThat is it.', check)
    assert followed.strict == (False, False)
    assert followed.loose == (True, True)
    assert judge("", checks(["punctuation:no_comma"], [{}])) == ((False,), (False,))


def rows(sample: Callable[..., Sample], text: str) -> Sample:
    return sample(text, instruction_id_list=["punctuation:no_comma", "startend:quotation"], kwargs=[{}, {"x": None}])


def test_value_is_all_or_the_mean(sample: Callable[..., Sample]) -> None:
    half = rows(sample, "a b")
    assert IFEvalConfig().build(None).verify(half).value == 0.0  # type: ignore[arg-type]
    score = IFEvalConfig(value="mean").build(None).verify(half)  # type: ignore[arg-type]
    assert score.value == 0.5
    assert score.parts["instructions"] == 0.5
    assert score.parts["answer"] == 0.0
    assert "startend:quotation" in score.detail
    loose = IFBenchConfig().build(None).verify(rows(sample, 'Sure,\n"a b"'))  # type: ignore[arg-type]
    assert (loose.value, loose.parts["strict"], loose.parts["loose"]) == (1.0, 0.0, 1.0)


def test_conformance(sample: Callable[..., Sample]) -> None:
    check_verifier(IFEvalConfig(), samples=[rows(sample, t) for t in ("a", '"a"', "", "((" * 500, "\x00\ufffd")])


@pytest.mark.parametrize(
    ("meta", "why"),
    [
        ({}, "instruction_id_list"),
        ({"instruction_id_list": ["punctuation:no_coma"], "kwargs": [{}]}, "did you mean 'punctuation:no_comma'"),
        ({"instruction_id_list": ["keywords:existence"], "kwargs": [{}]}, "lacks 'keywords'"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": []}, "1 instructions but 0 kwargs"),
    ],
)
def test_rows_that_cannot_be_checked(meta: dict[str, object], why: str, sample: Callable[..., Sample]) -> None:
    score = IFEvalConfig().build(None).verify(sample("a", **meta))  # type: ignore[arg-type]
    assert score.status is ScoreStatus.MISSING
    assert why in score.detail


def test_an_unknown_instruction_is_found_at_start(command: Callable, tmp_path: Path) -> None:
    row = {"prompt": "Hi", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    bad = {**row, "instruction_id_list": ["keywords:existense"]}
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, [row, row, bad])))
    code, output = command(
        "train",
        "--algo",
        "grpo",
        "--reward",
        "ifeval",
        "--dataset",
        tmp_path / "rows.jsonl",
        "--set",
        "dataset.heldout_fraction=0.0",
    )
    assert code == 2
    assert "rows.jsonl, line 3" in output
    assert "did you mean 'keywords:existence'" in output


def test_every_row_of_ifeval_and_ifbench_can_be_checked(test_data: Path) -> None:
    files = ("ifeval/input_data.jsonl", "ifbench/IFBench_test.jsonl.gz")
    every = [row for file in files for row in read_rows(str(test_data / file)).rows]
    assert len(every) == 541 + 300
    assert {i for row in every for i in row["instruction_id_list"]} == set(INSTRUCTIONS) - TRAINING
    for reference in ("text", "published"):
        assert all(checks(row["instruction_id_list"], row["kwargs"], reference) for row in every)  # type: ignore[arg-type]


def test_verdicts_are_those_of_googles_checker_on_a_sample(test_data: Path) -> None:
    from rlhf_studies.instruction_verdicts.run import compare_ifeval

    disagreements = list(compare_ifeval(test_data / "ifeval", every=9))
    assert sum(f.verdicts for f in disagreements) > 360
    assert {d.key for f in disagreements for d in f.differences} <= KNOWN


@pytest.mark.long  # every ninth row: above
@pytest.mark.slow
def test_verdicts_are_those_of_googles_checker(test_data: Path) -> None:
    from rlhf_studies.instruction_verdicts.run import compare_ifeval

    disagreements = list(compare_ifeval(test_data / "ifeval"))
    assert sum(f.verdicts for f in disagreements) == 4 * 834
    assert {d.key for f in disagreements for d in f.differences} <= KNOWN
