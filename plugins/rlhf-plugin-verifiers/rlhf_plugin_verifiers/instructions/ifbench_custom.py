"""IFBench's one-off tasks, each with its own check."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from itertools import pairwise

from rlhf_plugin_verifiers.instructions.lexicon import CAPITALS, MARKS, bare
from rlhf_plugin_verifiers.instructions.sentences import sentences

AFRICAN_COUNTRIES = 52
"""Fewest countries of Africa to be listed."""


def ascii_of(text: str) -> str:
    """The text without accents."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def multiples(text: str) -> bool:
    """The multiples of 7 from 10 to 50, and no other number."""
    return re.findall(r"\d+", text.replace(",", ", ")) == [str(n) for n in range(14, 51, 7)]


def mcq_count_length(text: str) -> bool:
    """Four questions of growing length with five lettered options each, and nothing before them."""
    if not text.startswith("Question"):
        return False
    questions = [q.strip() for q in re.split(r"\n*Question \d+[.|):;]?\s*", text) if q.strip()]
    lengths = [_question_length(q.split("\n")) for q in questions]
    if len(lengths) != 4 or None in lengths:
        return False
    return all(a < b for a, b in pairwise(n for n in lengths if n is not None))


def _question_length(lines: list[str]) -> int | None:
    """Characters of the question before its options; None unless there are five options."""
    are_options = [*map(is_option, lines)]
    if sum(are_options) != 5:
        return None
    return len(" ".join(line.strip() for line in lines[: are_options.index(True)]).strip())


def is_option(line: str) -> bool:
    """Whether a line is a lettered option."""
    return re.match(r"[A-Ea-e][.|)]\s*\w+", line.strip()) is not None


def reverse_newline(text: str) -> bool:
    """The countries of Africa from Zimbabwe on, in reverse order, one a line."""
    lines = [line for line in (line.strip(MARKS) for line in text.split("\n")) if line]
    start = next((i for i, line in enumerate(lines) if "Zimbabwe" in line), len(lines))
    ascii_lines = [ascii_of(line) for line in lines[start:]]
    return len(ascii_lines) >= AFRICAN_COUNTRIES and ascii_lines == sorted(ascii_lines, reverse=True)


def word_reverse(text: str) -> bool:
    """One sentence about the bald eagle, its words in reverse order."""
    turned = " ".join(reversed(bare(text.lower()).split()))
    return "bald eagle" in turned and turned in sentences(turned)


def character_reverse(text: str) -> bool:
    """The bald eagle, letter by letter in reverse."""
    return "bald eagle"[::-1] in text.lower()


def sentence_alphabet(text: str) -> bool:
    """Twenty-six sentences that begin with A to Z."""
    all_sentences = sentences(text)
    return len(all_sentences) == 26 and all(s[0].lower() == chr(97 + i) for i, s in enumerate(all_sentences))


def european_capitals_sort(text: str) -> bool:
    """The capitals north of 45 degrees, from north to south."""
    return tuple(c.strip() for c in ascii_of(text).split(",") if c.strip()) == CAPITALS


def table(text: str, delimiter: str = ",") -> list[list[str]]:
    """CSV rows, their quotes kept in the fields."""
    return list(csv.reader(io.StringIO(text.replace('"', '"""')), delimiter=delimiter))


def _header(text: str, names: str, between: str) -> bool:
    """Whether the first line holds the names, quoted or not."""
    pattern = between.join(rf'(?:{n}|"{n}")' for n in names.split())
    return re.fullmatch(pattern, text.split("\n")[0].strip()) is not None


def csv_city(text: str) -> bool:
    """CSV with a given header and seven rows of five fields."""
    rows = list(csv.reader(io.StringIO(text)))
    return (
        len(rows) == 8 and rows[0] == ["ID", "Country", "City", "Year", "Count"] and all(len(r) == 5 for r in rows[1:])
    )


def csv_special_character(text: str) -> bool:
    """CSV with fourteen rows of five fields, one of them quoted and with a special character."""
    rows = table(text)
    if not _header(text, "ProductID Category Brand Price Stock", r",[ \t]*") or len(rows) != 15:
        return False
    for row in rows[1:]:
        if len(row) != 5:
            return False
        if any(re.match(r'".*[^\d\w\s].*"', field) for field in row):
            return True
    return False


def csv_quotes(text: str) -> bool:
    """Tab-separated, three rows of five fields, each field quoted."""
    rows = table(text, "\t")
    if not _header(text, "StudentID Subject Grade Semester Score", r"\t *") or len(rows) != 4:
        return False
    return all(len(r) == 5 and all(f.strip()[:1] == '"' == f.strip()[-1:] for f in r) for r in rows)


def date_format_list(text: str) -> bool:
    """Dates of Napoleon's lifetime as YYYY-MM-DD, parted by commas."""
    return all(_is_date(d.strip()) for d in text.strip().split(","))


def _is_date(text: str) -> bool:
    match = re.fullmatch(r"(\d{4})-(\d{2})-(\d{2})", text)
    if match is None:
        return False
    year, month, day = map(int, match.groups())
    longest = 29 if month == 2 else 30 if month in (4, 6, 9, 11) else 31
    return 1769 <= year <= 1821 and month <= 12 and day <= longest
