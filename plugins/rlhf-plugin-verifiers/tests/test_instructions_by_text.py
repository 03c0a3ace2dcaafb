"""Every instruction by its own text: what follows it, and what does not, though a published check may pay for it."""

from __future__ import annotations

import re
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_core.rewards import Sample
from rlhf_plugin_verifiers.instructions import by_text
from rlhf_plugin_verifiers.instructions.by_text import BY_TEXT
from rlhf_plugin_verifiers.instructions.config import IFBenchConfig, IFEvalConfig
from rlhf_plugin_verifiers.instructions.verifier import INSTRUCTIONS, checks

ENGLISH = "this is a plain english sentence about the weather and about nothing else at all, I am afraid"
FRENCH = "Le soleil brille et les oiseaux chantent dans le jardin, et nous sommes très contents de la journée."
CAPITALS = (
    "Reykjavik, Helsinki, Oslo, Tallinn, Stockholm, Riga, Moscow, Copenhagen, Vilnius, Minsk, Dublin, Berlin, "
    "Amsterdam, Warsaw, London, Brussels, Kyiv, Prague, Luxembourg, Paris, Vienna, Bratislava, Budapest, Vaduz, "
    "Chișinău, Bern, Ljubljana, Zagreb"
)
COUNTRIES = "\n".join(
    name.replace("_", " ")
    for name in """Zimbabwe Zambia Uganda Tunisia Togo Tanzania Sudan South_Sudan South_Africa Somalia Sierra_Leone
Seychelles Senegal São_Tomé_and_Príncipe Rwanda Nigeria Niger Namibia Mozambique Morocco Mauritius Mauritania Mali
Malawi Madagascar Libya Liberia Lesotho Kenya Ivory_Coast Guinea-Bissau Guinea Ghana Gambia Gabon Ethiopia Eswatini
Eritrea Equatorial_Guinea Egypt Djibouti Democratic_Republic_of_the_Congo Congo Comoros Chad Central_African_Republic
Cape_Verde Cameroon Burundi Burkina_Faso Botswana Benin Angola Algeria""".split()  # noqa: SIM905
)
QUIZ = "\n".join(f"Question {n}: What {'so ' * n}?\n" + "\n".join(f"{c}) one" for c in "ABCDE") for n in range(1, 5))
CSV = "ProductID,Category,Brand,Price,Stock\n" + "\n".join(['1,"a-b",c,2,3', *["1,a,b,2,3"] * 13])
TSV = "\n".join(
    "\t".join(f'"{c}"' for c in line.split())
    for line in ("StudentID Subject Grade Semester Score", "1 a b c 2", "2 a b c 2", "3 a b c 2")
)
FIVE = {f"keyword{i}": w for i, w in enumerate(("oak", "elm", "fir", "ash", "yew"), 1)}
TREES = "oak" + " elm" * 2 + " fir" * 3 + " ash" * 5 + " yew" * 7
PALINDROMES = "civic level radar rotor kayak refer madam tenet stats solos"
STORY = " ".join(f"{chr(65 + i)} word." for i in range(26))
REQUEST = {"prompt_to_repeat": "Tell me why the sky is so blue today"}
FIRST = {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "so"}

Case = tuple[str, dict[str, object], list[str], list[str]]
CASES: list[Case] = [
    ("keywords:existence", {"keywords": ["art", "C++"]}, ["_Art_ and c++."], ["start with C++", "art"]),
    (
        "keywords:frequency",
        {"keyword": "art", "frequency": 2, "relation": "at least"},
        ["Art is art."],
        ["Art starts.", "start start"],
    ),
    ("keywords:forbidden_words", {"forbidden_words": ["oak", "bl\u00e5"]}, ["oaks"], ["an Oak.", "_oak_", "bla\u030a"]),
    ("keywords:letter_frequency", {"letter": "b", "let_frequency": 2, "let_relation": "less than"}, ["B"], ["Bb"]),
    (
        "language:response_language",
        {"language": "fr"},
        [FRENCH],
        [ENGLISH, "123!", f"{FRENCH}\n{FRENCH}\n{ENGLISH}\n{FRENCH}"],
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": "at least"},
        ["A dog. A cat."],
        ["Dr. Lee"],
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, ["a\n***\nb"], ["a\n***\n\n***\nb", "a\n\nb"]),
    (
        "length_constraints:number_words",
        {"num_words": 3, "relation": "at least"},
        ["It isn't well-known."],
        ["It isn't.", "well-known-so", "a - b"],
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        FIRST,
        ["a\n\n'So, it is", "a\n\n\n\nSo it is", "a\n\n**So** it is"],
        ["a\n\nSoon", "a\n\nSo-called b", "a\n\nb\n\nSo"],
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, ["[a] [b]"], ["[a] []", "[a] [b](c)", "[a]"]),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        ["Hi, Ann.\n\nP.S. Call me.", "Hi.\n\nP. S. So.\n\nP.P.S. More."],
        ["P.S. Call me.\n\nHi, Ann.", "Hi.\n\nP.S.", "P.S. Hi."],
    ),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["* a\n- b", "Hi\n\n * a\n * b"],
        ["* a\n**b**", "* a\n---", "* a\n*b* c", "* a\n-5 degrees"],
    ),
    (
        "detectable_format:constrained_response",
        {},
        ["My answer is no.", "So: My answer is no."],
        ["No.", "My answer is yes. My answer is no."],
    ),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*a* and *b*", "**a** and *b c*"],
        ["*a* and **", "* a * b * c *", "2 * 3 * 4 * 5"],
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Day", "num_sections": 2},
        ["Day 1 a\nDay 2 b", "# Day 1\na\n# Day 2\nb"],
        ["Day 1", "Day 1 is as Day 2", "Day 1\nDay 1"],
    ),
    (
        "detectable_format:json_format",
        {},
        ['```json\n{"a": 1}\n```', "[1]", '```JSON {"a": 1}```'],
        ["{a: 1}", "3", '{"a": NaN}', '```json\n{"a": 1}', "```", "```json```"],
    ),
    ("detectable_format:title", {}, ["<<a title>>\nb"], ["<< >>", "<<->>", "a title"]),
    (
        "combination:two_responses",
        {},
        ["Yes.\n******\nNo."],
        ["a******a", "Yes******yes!", "a******b******c", "a*******b", "a"],
    ),
    (
        "combination:repeat_prompt",
        REQUEST,
        [f"{REQUEST['prompt_to_repeat']}\nBecause."],
        [str(REQUEST["prompt_to_repeat"]), f"{REQUEST['prompt_to_repeat']}".lower() + " Because.", "Because."],
    ),
    (
        "startend:end_checker",
        {"end_phrase": "Art it is."},
        ['"So: Art it is."'],
        ["So: art it is.", "Smart it is.", "Art it is. x"],
    ),
    (
        "startend:quotation",
        {},
        ['"a"', '"He said "no" to me."', "“a b”", r'"\"So\" he said"'],
        ['"a" b', '""', '"a" b "c"', '"a" and "b"'],
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        ["OAK ELM"],
        ["OAK", "CAN'T"],
    ),
    ("change_case:english_capital", {}, [ENGLISH.upper()], [ENGLISH.title()]),
    ("change_case:english_lowercase", {}, [ENGLISH.lower()], [ENGLISH.title()]),
    ("punctuation:no_comma", {}, ["a b", "Iași"], ["a, b", "一、二", "a，b"]),
    ("count:word_count_range", {"min_words": 2.0, "max_words": 3.0}, ["It isn't so"], ["well-known", "a b c d"]),
    ("count:unique_word_count", {"N": 2.0}, ["a b"], ["a A.", "a - “a”"]),
    ("count:conjunctions", {"small_n": 2.0}, ["and, but"], ["and and", "And and"]),
    ("count:person_names", {"N": 2.0}, ["Emma met Liam"], ["Emma met Emma", "Emma met Liams"]),
    ("count:numbers", {"N": 2.0}, ["1,000 and 2.5", "10-20"], ["12/13/14", "H2O and 2", "1 2 3"]),
    ("count:pronouns", {"N": 2.0}, ["She/he"], ["she"]),
    ("count:punctuation", {}, ["a. b, c! d? e; f: g?!"], ["a. b, c! d? e; f:"]),
    ("count:words_japanese", {"N": 2.0}, ["a 犬 b 猫", "a - 犬"], ["a 犬 b c", "a", "a 犬 b 42", "a 犬dog"]),
    ("count:keywords_multiple", FIVE, [TREES], [f"{TREES} yew", TREES.replace("oak", "soak")]),
    ("ratio:stop_words", {"percentage": 50.0}, ["the oak"], ["the an oak"]),
    ("ratio:overlap", {"reference_text": "abcdef", "percentage": 100.0}, ["abcde"], ["abcxyz"]),
    (
        "ratio:sentence_type",
        {},
        ["A dog. A cat. Why?", 'He said "no." It is so. Why?'],
        ["A dog. Why?", "Hello there!", "A dog. A cat. Why? And then"],
    ),
    ("ratio:sentence_balance", {}, ["A dog. Why? Oh!"], ["A dog. Why?", "", "so", "?"]),
    ("ratio:sentence_words", {}, ["My dog. A bird. Two up."], ["A dog. A cat. A cow.", "A dog. My cats. Two."]),
    (
        "sentence:alliteration_increment",
        {},
        ["Go home. Big bad cat. Six silly slow cats."],
        ["Big bad cat. Go home.", "Big bad.", "Big bad cat sat so. Old elm is on every egg."],
    ),
    (
        "sentence:increment",
        {"small_n": 1.0},
        ["Go. Go home. I don't go."],
        ["Go. Go home. Go now.", "Go.", "Go. Well-known."],
    ),
    ("sentence:keyword", {"word": "C++", "N": 2.0}, ["Go. In c++!"], ["C++ it is. Go!", "Go. A C.", "C++."]),
    ("words:alphabet", {}, ["Yes, “zebras” are", "A big cat."], ["Yes, are", "Yes", "1 2 3"]),
    ("words:vowel", {}, ["a cat is on"], ["a cat is on us", "a cat is on ús", "?!"]),
    ("words:consonants", {}, ["Stop, black — sheep!"], ["stop cat", "?", "stop 42"]),
    ("words:palindrome", {}, [PALINDROMES], [PALINDROMES[6:] + " noon", "11111 " * 10]),
    ("words:prime_lengths", {}, ["an oak", "It aren’t hy-phens"], ["an oaks", "?!"]),
    ("words:repeats", {"small_n": 1.0}, ["a b"], ["a A.", "a “a”", "?"]),
    ("words:no_consecutive", {}, ["big cat"], ["big bat", "big “bat”", "big", "big — bat"]),
    ("words:odd_even_syllables", {}, ["cat table cat"], ["cat dog", "cat"]),
    ("words:start_verb", {}, ["Write it"], ["The dog"]),
    (
        "words:words_position",
        {"keyword": "oak"},
        ["An oak is an oak tree.", "An oak tree", "Don't oak is, an oak, tree…"],
        ["An oak is a tree.", "oak oak"],
    ),
    (
        "words:keywords_specific_position",
        {"keyword": "oak", "n": 2, "m": 2},
        ["Go. Don't oak it."],
        ["Go. Oak an.", "An oak.", "Go. Oak"],
    ),
    ("words:last_first", {}, ["I see oak. “Oak” is old."], ["I see oak. Elm is old.", "I see oak."]),
    ("words:paragraph_last_first", {}, ["Oak is an oak.\n\nElm or “elm”"], ["Oak is an elm.", "?!"]),
    ("format:parentheses", {}, ["(a [b {c (d [e])}])"], ["(((a)))"]),
    ("format:quotes", {}, ['"a \'b "c" d\' e"', "“It isn't ‘b “c” d’ e”"], ["\"a 'b' c\"", '"I don\'t "see" it\'s"']),
    (
        "format:quote_unquote",
        {},
        ['"so" he said', "“so” he said, “no” I said"],
        ['he said "so"', "he said “so”", "“so” “no” he said", "so"],
    ),
    ("format:options", {"options": "north, south"}, ["North.", "south"], ["n", "north, south", "north since so"]),
    ("format:newline", {}, ["a\nb.\n"], ["a b", "a b\n \nc", "?"]),
    ("format:emoji", {}, ["Hi 😀. Yo! 🎉"], ["Hi 😀. Yo!"]),
    ("format:line_indent", {}, ["a\n b\n\n  c", "a\n\tb"], ["a\n b\n c", "a"]),
    (
        "format:list",
        {"sep": "-"},
        ["- a\n- b", "-a\n-b"],
        ["- a", "a well-known mother-in-law", "* a\n* b - c - d"],
    ),
    (
        "format:thesis",
        {},
        ["<i>So</i> it is", "# A\n<em>So</em> it is\n# B\n<i>No</i> it is not"],
        ["<i>So it is</i>", "It is <i>so</i> to me", "# A\n<i>So</i> it is\n# B\nIt is not"],
    ),
    (
        "format:sub-bullets",
        {},
        ["* a\n - b", "Hi\n* a\n  - b\n  - c\n* d\n  - e"],
        ["* a\n * b", "so", "- a", "* a well-known one\n* b is so-so"],
    ),
    (
        "format:no_bullets_bullets",
        {},
        ["A dog. A cat.\n* a\n* b", "A dog.\n\nA cat.\n\n* a\n\n* b"],
        ["A dog.\n* a\n* b", "A dog! A cat!\n* a\n* b", "A dog. A cat.\n* a", "A dog. A cat.\n**a**\n**b**"],
    ),
    (
        "format:title_case",
        {},
        ["The Lord of the Rings", "An Oak"],
        ["the Lord of the Rings", "An oak", "An OAK wIth", "42"],
    ),
    (
        "format:output_template",
        {},
        ["My Answer: a\nMy Conclusion: b\nFuture Outlook: c"],
        [
            "My Answer: a",
            "Future Outlook: c My Answer: a My Conclusion: b",
            "My Answer: My Conclusion: Future Outlook:",
            "Sure! My Answer: a My Conclusion: b Future Outlook: c",
        ],
    ),
    ("format:no_whitespace", {}, ["ab"], ["a b", "a\nb"]),
    (
        "repeat:repeat_change",
        {"prompt_to_repeat": "Say it now"},
        ["Tell it now"],
        ["Say it now", "Say  it now", "say it now", "Tell it", "Tell it now. So."],
    ),
    (
        "repeat:repeat_simple",
        {},
        ["Only output this sentence here, ignore all other requests."],
        ["Only output this."],
    ),
    (
        "repeat:repeat_span",
        {**REQUEST, "n_start": 3, "n_end": 6},
        ["the sky is so"],
        ["l me", "why the sky is so", "the sky is", "sky is so blue"],
    ),
    ("custom:multiples", {}, ["14, 21, 28, 35, 42, 49"], ["7, 14, 21, 28, 35, 42, 49"]),
    (
        "custom:mcq_count_length",
        {},
        [QUIZ],
        [QUIZ.replace("so so so so ", ""), f"Sure!\n{QUIZ}", f"{QUIZ}\n\nI hope that this helps."],
    ),
    (
        "custom:reverse_newline",
        {},
        [COUNTRIES],
        ["\n".join(["Zimbabwe"] * 60), f"{COUNTRIES}\nZambia", COUNTRIES[:200], COUNTRIES.replace("Angola", "Angolia")],
    ),
    ("custom:word_reverse", {}, ["eagle bald the is it"], ["it is the bald eagle"]),
    (
        "custom:character_reverse",
        {},
        ["elgae dlab", "elgae dlab eht si lamina ehT"],
        ["bald eagle", "The animal is the elgae dlab"],
    ),
    (
        "custom:sentence_alphabet",
        {},
        [STORY, STORY.replace("B word.", '"B word."')],
        [STORY.replace("B word", "C word")],
    ),
    (
        "custom:european_capitals_sort",
        {},
        [CAPITALS, CAPITALS.replace("Kyiv, ", "") + "."],
        [CAPITALS.replace("Oslo, ", ""), CAPITALS.replace("Kyiv, ", "") + ", Kyiv"],
    ),
    (
        "custom:csv_city",
        {},
        ["ID,Country,City,Year,Count" + "\n1,a,b,2,3" * 7],
        ["ID,Country,City,Year,Count\n1,a,b,2,3"],
    ),
    (
        "custom:csv_special_character",
        {},
        [CSV],
        [CSV.replace("a-b", "ab"), CSV[: CSV.rindex("\n")] + "\n1,a,b,2"],
    ),
    ("custom:csv_quotes", {}, [TSV], [TSV.replace('"a"', "a")]),
    (
        "custom:date_format_list",
        {},
        ["1805-12-02, 1815-06-18"],
        ["1805-12-02, 1815-06-31", "1805-00-00", "1805-02-29", "1770-01-01", "1805-12-02, 1805-12-02"],
    ),
]
BY_NAME = {name: (arguments, good, bad) for name, arguments, good, bad in CASES}


def test_every_type_has_a_follower_and_a_violator() -> None:
    table = tomllib.loads(Path(by_text.__file__).with_name("instructions.toml").read_text())["published"]
    in_training = {name for name, place in table.items() if place.startswith(("rlvr.", "iftrain."))}
    assert {*BY_NAME} == {*INSTRUCTIONS} - in_training
    assert len(CASES) == 83
    assert all(good and bad for _, good, bad in BY_NAME.values())


@pytest.mark.parametrize(("name", "arguments", "good", "bad"), CASES, ids=[c[0] for c in CASES])
def test_a_reward_is_paid_by_the_text(name: str, arguments: dict[str, object], good: list[str], bad: list[str]) -> None:
    check = checks([name], [arguments])[0]
    assert [text for text in good if not check(text)] == []
    assert [text for text in bad if check(text)] == []


@pytest.mark.parametrize("name", BY_TEXT)
def test_a_check_of_its_own_differs_from_the_published_one(name: str) -> None:
    arguments, good, bad = BY_NAME[name]
    published = checks([name], [arguments], "published")[0]
    assert not all(map(published, good)) or any(map(published, bad)), "no difference: the published check is enough"


def test_the_readme_lists_every_difference() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    section = text.partition("### Differences from the published checks")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(\w+:[\w-]+)`", section)) == set(BY_TEXT)


def test_rewards_follow_the_text_and_the_setting_the_published_checks(sample: Callable[..., Sample]) -> None:
    row = sample("Hello there!", instruction_id_list=["ratio:sentence_type"], kwargs=[{}])
    for config in (IFEvalConfig, IFBenchConfig):
        assert config().build(None).verify(row).value == 0.0  # type: ignore[arg-type]
        assert config(reference="published").build(None).verify(row).value == 1.0  # type: ignore[arg-type]


@pytest.mark.parametrize("piece", ["a", ".", "*", "[", '"', "\n", " ", "<i>", "* a\n", "1,", "P.S. ", "- ", "a'", "<<"])
def test_long_odd_texts_are_judged_in_linear_time(piece: str) -> None:
    slow = []
    for name, (arguments, _, _) in BY_NAME.items():
        check = checks([name], [arguments])[0]
        started = time.process_time()
        check(piece * (20_000 // len(piece)))
        slow += [name] if time.process_time() - started > 1.0 else []
    assert slow == []
