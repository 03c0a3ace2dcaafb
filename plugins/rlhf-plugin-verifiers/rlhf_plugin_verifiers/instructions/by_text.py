"""What an instruction's own text asks where the published check asks less, or something else; README.md lists the
differences. An instruction about each word, sentence, line or quote needs one, or two where it compares neighbours."""

from __future__ import annotations

import json
import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from importlib import import_module
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from rlhf_plugin_verifiers.instructions import ifbench_custom, ifbench_form, ifeval
from rlhf_plugin_verifiers.instructions.lexicon import (
    AFRICA,
    CAPITALS,
    CONJUNCTIONS,
    MARKS,
    MINOR,
    SHORT,
    STOP_WORDS,
    in_language,
    syllables,
)
from rlhf_plugin_verifiers.instructions.sentences import sentences

_MARKS = "".join(c for c in map(chr, range(0x300, 0xFE30)) if unicodedata.category(c)[0] == "M") + "\u200c\u200d"
_LETTER = rf"[^\W_][{_MARKS}]*"
_WORD = re.compile(rf"(?:{_LETTER})+(?:['’-](?:{_LETTER})+)*")
_UNSPACED = r"[\u3005\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff]"
_SPACED = rf"(?:(?!{_UNSPACED}){_LETTER})+"
_COUNTED = re.compile(rf"(?=[^\W_]){_UNSPACED}|{_SPACED}(?:['’-]{_SPACED})*")
_NUMBER = re.compile(r"(?<![^\W_])(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")
_JAPANESE = re.compile(r"[\u3005\u3040-\u30ff\u3400-\u9fff\uff66-\uff9d]+")
_HIGHLIGHT = re.compile(r"(?<![\w*])(\*{1,3})(?![\s*])([^\n*]*[^\s*])\1(?![\w*])")
_HEADING = re.compile(r"^[ \t]*(?:#+[ \t].*|\*\*[^*\n]+\*\*|<h\d>.*</h\d>)[ \t]*$", re.MULTILINE)
_TEMPLATE = ("My Answer:", "My Conclusion:", "Future Outlook:")
_STRAIGHT = str.maketrans("“”„‘’", '"""\'\'')
_NORTH = CAPITALS.index("Brussels") + 1
_WITH_KYIV = (*CAPITALS[:_NORTH], "Kyiv", *CAPITALS[_NORTH:])


def words(text: str) -> list[str]:
    """Runs of letters and digits; an apostrophe or a hyphen within one does not end it."""
    return _WORD.findall(text)


def counted_words(text: str) -> list[str]:
    """:func:`words`, but each Chinese character and each kana is one: no space parts their words, and word processors
    count them so. Korean words have spaces."""
    return _COUNTED.findall(text)


def occurrences(text: str, phrase: str) -> int:
    """How often a word or phrase stands in a text as a whole, in any case, between Markdown's underscores too."""
    text, phrase = (unicodedata.normalize("NFC", t) for t in (text, phrase))
    pattern = r"\s+".join(map(re.escape, phrase.split()))
    return len(re.findall(rf"(?<![^\W_]){pattern}(?![^\W_])", text, re.IGNORECASE))


def letters(word: str) -> str:
    return "".join(filter(str.isalnum, word))


def spoken(text: str) -> list[list[str]]:
    """The words of each sentence that has any, in lower case."""
    return [spoken_words for s in sentences(text) if (spoken_words := words(s.lower()))]


def nth_sentence(text: str, number: float) -> str:
    return "".join(sentences(text)[int(number) - 1 : int(number)])


def neighbours(items: Sequence[Any], holds: Callable[[Any, Any], bool]) -> bool:
    return len(items) > 1 and all(holds(a, b) for a, b in pairwise(items))


def firsts(text: str) -> list[str]:
    return [word[0] for word in words(text.lower())]


def bullets(text: str, marks: str) -> list[str]:
    """Lines that are a bullet with something behind it."""
    pattern = re.compile(rf"\s*[{marks}][ \t]+\S")
    return [line for line in text.split("\n") if pattern.match(line) and words(line)]


def kinds(text: str) -> tuple[int, int, int]:
    """Statements, questions and exclamations; a sentence without a final mark is a statement."""
    bare = [s.rstrip(ifbench_form.CLOSERS) for s in sentences(text) if words(s)]
    ends = [s[len(s.rstrip(".?!")) :] for s in bare]
    marks = Counter("?" if "?" in end else "!" if "!" in end else "." for end in ends)
    return marks["."], marks["?"], marks["!"]


def response_language(text: str, *, language: str) -> bool:
    """There are words, and no long line is in another language."""
    lines = [line for line in text.split("\n") if len(words(line)) > SHORT]
    return any(map(str.isalpha, text)) and all(in_language(t, language) for t in (text, *sorted(lines, key=len)[-8:]))


def nth_paragraph_first_word(text: str, *, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    paragraphs = [words(p.lower()) for p in text.split("\n\n") if p.strip()]
    return len(paragraphs) == num_paragraphs and paragraphs[nth_paragraph - 1][:1] == [first_word.strip().lower()]


def postscript(text: str, *, postscript_marker: str) -> bool:
    """The last paragraph holds the marker and text behind it; a P.P.S. may follow."""
    marker = ifeval.POSTSCRIPTS.get(postscript_marker.strip(), re.escape(postscript_marker.strip().lower()))
    paragraphs = re.split(r"\n\s*\n", text.strip().lower())
    while len(paragraphs) > 1 and "p.p" not in postscript_marker.lower() and re.match(r"\W*p\.\s?p\.", paragraphs[-1]):
        paragraphs.pop()
    match = re.search(rf"(?<![\w.]){marker}", paragraphs[-1])
    if match is None:
        return False
    before = [*paragraphs[:-1], paragraphs[-1][: match.start()]]
    return any(map(words, before)) and bool(words(paragraphs[-1][match.end() :]))


def multiple_sections(text: str, *, section_spliter: str, num_sections: int) -> bool:
    """At least so many, each with a number of its own at the beginning of a line."""
    pattern = rf"^[ \t#*_>\"“'(\[\\]*{re.escape(section_spliter.strip())}[ \t]?(\d+)"
    return len({*re.findall(pattern, text, re.MULTILINE)}) >= num_sections


def json_format(text: str) -> bool:
    """An object or a list of JSON's own values; a code fence is closed."""
    body = text.strip()
    if body.startswith("```"):
        body = re.sub(r"^json\b", "", body[3:-3].strip(), flags=re.IGNORECASE) if body.endswith("```") else ""
    try:
        return isinstance(json.loads(body, parse_constant=int), dict | list)  # int("NaN") is a ValueError
    except (ValueError, RecursionError):
        return False


def two_responses(text: str) -> bool:
    """Parted by exactly six stars; case and punctuation make no difference between them."""
    parts = [words(part.lower()) for part in re.split(r"(?<!\*)\*{6}(?!\*)", text)]
    filled = [part for part in parts if part]
    return all(parts[1:-1]) and len(filled) == 2 and filled[0] != filled[1]


def in_case_of(text: str, phrase: str) -> str:
    """A phrase as a response has to give it that is all in capitals, or all in lower case."""
    return phrase.upper() if text.isupper() else phrase.lower() if text.islower() else phrase


def repeat_prompt(text: str, *, prompt_to_repeat: str) -> bool:
    """The request without change, and an answer."""
    request, words = in_case_of(text, prompt_to_repeat).split(), text.split()
    return words[: len(request)] == request and len(words) > len(request)


def end_checker(text: str, *, end_phrase: str) -> bool:
    """Not as the end of a longer word."""
    phrase = re.escape(in_case_of(text, end_phrase.strip()))
    return re.search(rf"(?<!\w){phrase}\Z", text.strip().strip('"”').rstrip()) is not None


def no_comma(text: str) -> bool:
    """Nor a comma of another script."""
    marks = (c for c in set(text) if unicodedata.category(c)[0] == "P")
    return not any(unicodedata.name(c, "").endswith("COMMA") for c in marks)


def quotation(text: str) -> bool:
    """The quote that opens the response closes it; within it others may open, after a space, or be escaped."""
    text = text.strip().translate(_STRAIGHT).replace('\\"', "")
    depth = 1
    for i in (i for i, c in enumerate(text[:-1]) if c == '"' and i):
        depth += 1 if text[i - 1] in " \n\t('" and text[i + 1].isalnum() else -1
        if depth < 1:
            return False
    return len(text) > 2 and text[0] == text[-1] == '"' and bool(words(text))


def words_japanese(text: str, *, N: float) -> bool:
    """All letters of each N-th word; a number is no Japanese word."""
    nth = [w for w in text.split() if letters(w)][int(N) - 1 :: int(N)]
    return bool(nth) and all(_JAPANESE.fullmatch(letters(w)) for w in nth)


def alliteration_increment(text: str) -> bool:
    """By the longest run of words with one first letter."""
    runs = [max(len([*run]) for _, run in groupby(w[0] for w in s)) for s in spoken(text)]
    return neighbours(runs, lambda a, b: a < b)


def vowel(text: str) -> bool:
    """An accent makes no other vowel."""
    plain = unicodedata.normalize("NFKD", text.lower().strip())
    return bool(words(plain)) and "\n" not in plain and len(set(plain) & set("aeiou")) <= 3


def prime_lengths(text: str) -> bool:
    lengths = {len(letters(w)) for w in words(text)}
    return bool(lengths) and all(n > 1 and all(n % d for d in range(2, n)) for n in lengths)


def words_position(text: str, *, keyword: str) -> bool:
    all_words = words(text.lower())
    return len(all_words) > 2 and all_words[1] == all_words[-2] == keyword.strip().lower()


def quote_unquote(text: str) -> bool:
    """Words follow every quoted phrase, before the next one."""
    parts = text.translate(_STRAIGHT).replace("'\"'", "").split('"')
    return len(parts) > 1 and len(parts) % 2 == 1 and all(map(words, parts[2::2]))


def options(text: str, *, options: str) -> bool:
    """As published, but "or" parts options only as a word."""
    mark = "/" if "/" in options else r",|\bor\b" if re.search(r"\bor\b", options) else ","
    allowed = [option.strip() for option in re.split(mark, options) if option.strip()]
    if re.match(r"\W*a\W*b\W*c\W*", options, re.IGNORECASE):
        return text.strip() in allowed
    return text.strip(MARKS + "\n").lower() in [option.strip(MARKS).lower() for option in allowed]


def line_indent(text: str) -> bool:
    lines = [line.expandtabs() for line in text.split("\n") if line.strip()]
    return neighbours([len(line) - len(line.lstrip()) for line in lines], lambda a, b: a < b)


def separated_list(text: str, *, sep: str) -> bool:
    """At least twice, not as a hyphen within a word, and no other bullets."""
    sep = re.escape(sep.strip())
    others = [line for line in bullets(text, "*•-") if not re.match(rf"\s*{sep}", line)]
    return not others and len(re.findall(rf"(?<!\w){sep}|{sep}(?!\w)", text)) >= 2


def thesis(text: str) -> bool:
    """Each section, where headings part them, begins with its thesis and goes on."""
    sections = [s for s in _HEADING.split(text) if s.strip()]
    matches = [re.match(r"\s*<(i|em)>(.*?)</\1>(.*)", s, re.DOTALL | re.IGNORECASE) for s in sections]
    return bool(matches) and all(m is not None and words(m[2]) and words(m[3]) for m in matches)


def sub_bullets(text: str) -> bool:
    """Bullets there are, and a line of its own below each."""
    marks = [line.strip()[0] for line in bullets(text, "*-")]
    return "*" in marks and neighbours([*marks, "*"], lambda a, b: "-" in (a, b))


def no_bullets_bullets(text: str) -> bool:
    """Two sentences that end in a period, and then two bullets."""
    before = re.split(r"(?m)^[ \t]*\*[ \t]+\S", text, maxsplit=1)[0]
    periods = [s for s in sentences(before) if words(s) and s.rstrip(ifbench_form.CLOSERS).endswith(".")]
    return len(bullets(text, "*")) > 1 and len(periods) > 1


def title_case(text: str) -> bool:
    """Articles, conjunctions and short prepositions may stay in lower case, but not as the first word."""
    capitals = [w[0].isupper() or (i > 0 and w in MINOR) for i, w in enumerate(words(text)) if w[0].isalpha()]
    return bool(capitals) and all(capitals)


def output_template(text: str) -> bool:
    """The three headings once and in order, with nothing before the first and something behind each."""
    first, *parts = re.split(rf"({'|'.join(_TEMPLATE)})", text)
    return (*parts[::2],) == _TEMPLATE and not words(first) and all(map(words, parts[1::2]))


def repeat_change(text: str, *, prompt_to_repeat: str) -> bool:
    """Another word comes first, not another spelling of it."""
    said, request = text.split(), prompt_to_repeat.split()
    return said[1:] == request[1:] and words(" ".join(said[:1]).lower()) != words(request[0].lower())


def reverse_newline(text: str) -> bool:
    """Countries of Africa, each once."""
    lines = [ifbench_custom.ascii_of(line).strip(MARKS) for line in text.split("\n") if line.strip(MARKS)]
    known = [line for line in lines if any(name in line.lower() for name in AFRICA)]
    return len(lines) >= ifbench_custom.AFRICAN_COUNTRIES and known == sorted(set(lines), reverse=True)


def character_reverse(text: str) -> bool:
    """The whole sentence: it reads no more English forwards than backwards."""
    forwards, backwards = (sum(w in STOP_WORDS for w in words(t.lower()) if len(w) > 1) for t in (text, text[::-1]))
    return ifbench_custom.character_reverse(text) and forwards <= backwards


def of_a_battle(day: str) -> bool:
    """Whether a text is a day of the calendar, from Napoleon's first battle to his last."""
    try:
        return re.fullmatch(r"\d{4}-\d\d-\d\d", day) is not None and 1793 <= date.fromisoformat(day).year <= 1815
    except ValueError:
        return False


def date_format_list(text: str) -> bool:
    days = [day.strip() for day in text.strip().strip(".").split(",")]
    return len(days) == len(set(days)) and all(map(of_a_battle, days))


def named_checks(reference: str) -> Mapping[str, Callable[..., bool]]:
    """Instruction -> the function that ``instructions.toml`` names for it."""
    table = tomllib.loads(Path(__file__).with_name("instructions.toml").read_text())[reference]
    places = {instruction: place.split(".") for instruction, place in table.items()}
    return {i: getattr(import_module(f"{__package__}.{module}"), name) for i, (module, name) in places.items()}


BY_TEXT: Mapping[str, Callable[..., bool]] = {
    **named_checks("text"),
    "keywords:existence": lambda text, *, keywords: all(occurrences(text, k) for k in keywords),
    "keywords:frequency": lambda text, *, keyword, frequency, relation: ifeval.holds(
        occurrences(text, keyword), relation, frequency
    ),
    "keywords:forbidden_words": lambda text, *, forbidden_words: not any(occurrences(text, w) for w in forbidden_words),
    "length_constraints:number_words": lambda text, *, num_words, relation: ifeval.holds(
        len(counted_words(text)), relation, num_words
    ),
    "detectable_content:number_placeholders": lambda text, *, num_placeholders: (
        sum(map(bool, map(words, re.findall(r"\[([^\[\]\n]*)\](?!\()", text)))) >= num_placeholders
    ),
    "detectable_format:number_bullet_lists": lambda text, *, num_bullets: len(bullets(text, "*+-")) == num_bullets,
    "detectable_format:constrained_response": lambda text: sum(option in text for option in ifeval.OPTIONS) == 1,
    "detectable_format:number_highlighted_sections": lambda text, *, num_highlights: (
        len(_HIGHLIGHT.findall(text)) >= num_highlights
    ),
    "detectable_format:title": lambda text: any(map(words, re.findall(r"<<([^<>\n]+)>>", text))),
    "change_case:capital_word_frequency": lambda text, *, capital_frequency, capital_relation: ifeval.holds(
        sum(map(str.isupper, words(text))), capital_relation, capital_frequency
    ),
    "count:word_count_range": lambda text, *, min_words, max_words: min_words <= len(counted_words(text)) <= max_words,
    "count:unique_word_count": lambda text, *, N: len({*counted_words(text.lower())}) >= N,
    "count:conjunctions": lambda text, *, small_n: len(CONJUNCTIONS & {*words(text.lower())}) >= small_n,
    "count:numbers": lambda text, *, N: len(_NUMBER.findall(text)) == N,
    "count:keywords_multiple": lambda text, *, keyword1, keyword2, keyword3, keyword4, keyword5: (
        [occurrences(text, k) for k in (keyword1, keyword2, keyword3, keyword4, keyword5)] == [1, 2, 3, 5, 7]
    ),
    "ratio:sentence_type": lambda text: kinds(text)[0] == 2 * kinds(text)[1] > 0,
    "ratio:sentence_balance": lambda text: len({*kinds(text)}) == 1 and 0 not in kinds(text),
    "ratio:sentence_words": lambda text: (
        ifbench_form.sentence_words(text) and len({*words(text.lower())}) == len(words(text))
    ),
    "sentence:increment": lambda text, *, small_n: neighbours(
        [count for s in sentences(text) if (count := len(counted_words(s)))], lambda a, b: b == a + small_n
    ),
    "sentence:keyword": lambda text, *, word, N: occurrences(nth_sentence(text, N), word) > 0,
    "words:alphabet": lambda text: neighbours(firsts(text), lambda a, b: a + b in "abcdefghijklmnopqrstuvwxyza"),
    "words:consonants": lambda text: (
        bool(words(text)) and all(re.search(r"[bcdfghj-np-tv-z]{2}", w) for w in words(text.lower()))
    ),
    "words:palindrome": lambda text: (
        sum(w.isalpha() and w == w[::-1] and len(w) > 4 for w in words(text.lower())) >= 10
    ),
    "words:repeats": lambda text, *, small_n: 0 < max(Counter(words(text.lower())).values(), default=0) <= small_n,
    "words:no_consecutive": lambda text: neighbours(firsts(text), lambda a, b: a != b),
    "words:odd_even_syllables": lambda text: neighbours(
        [syllables(letters(w)) % 2 for w in words(text)], lambda a, b: a != b
    ),
    "words:keywords_specific_position": lambda text, *, keyword, n, m: (
        words(nth_sentence(text, n).lower())[int(m) - 1 : int(m)] == [keyword.strip().lower()]
    ),
    "words:last_first": lambda text: neighbours(spoken(text), lambda a, b: a[-1] == b[0]),
    "words:paragraph_last_first": lambda text: (
        bool(words(text)) and all(w[0] == w[-1] for w in map(words, text.lower().split("\n")) if w)
    ),
    "format:quotes": lambda text: ifbench_form.quotes(re.sub(r"(?<=\w)['’](?=\w)", "", text).translate(_STRAIGHT)),
    "format:newline": lambda text: max(sum(map(bool, map(letters, line.split()))) for line in text.split("\n")) == 1,
    "repeat:repeat_span": lambda text, *, prompt_to_repeat, n_start, n_end: (
        text.lower().split() == prompt_to_repeat.lower().split()[int(n_start) : int(n_end) + 1]
    ),
    "custom:mcq_count_length": lambda text: (
        ifbench_custom.mcq_count_length(text) and ifbench_custom.is_option(text.strip().split("\n")[-1])
    ),
    "custom:sentence_alphabet": lambda text: [s[0][0] for s in spoken(text)] == [chr(97 + i) for i in range(26)],
    "custom:european_capitals_sort": lambda text: (
        tuple(c.strip(MARKS + "\n") for c in ifbench_custom.ascii_of(text).split(",")) in (CAPITALS, _WITH_KYIV)
    ),
    "custom:csv_special_character": lambda text: (
        ifbench_custom.csv_special_character(text) and all(len(row) == 5 for row in ifbench_custom.table(text))
    ),
}
"""The checks that differ; its count of words is that of :func:`words`."""
