"""The 25 instruction types of IFEval (arXiv:2311.07911) as functions of a response and the data set's ``kwargs``. What
a row leaves out is refused, not drawn at random; keywords are taken literally, not as patterns."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from rlhf_plugin_verifiers.instructions.lexicon import in_language
from rlhf_plugin_verifiers.instructions.sentences import count_words, sentences, word_tokens

POSTSCRIPTS = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def holds(count: int, relation: str, threshold: float) -> bool:
    """Whether a count is ``less than`` a threshold, or else ``at least`` that."""
    return count < threshold if relation == "less than" else count >= threshold


def keywords_existence(text: str, *, keywords: Sequence[str]) -> bool:
    """Every keyword occurs, in any case and also inside words."""
    return all(k.lower() in text.lower() for k in keywords)


def keywords_frequency(text: str, *, keyword: str, frequency: int, relation: str) -> bool:
    """A keyword occurs so often."""
    return holds(len(re.findall(re.escape(keyword.strip()), text, re.IGNORECASE)), relation, frequency)


def forbidden_words(text: str, *, forbidden_words: Sequence[str]) -> bool:
    """None of the words occurs as a whole word."""
    return not any(re.search(rf"\b{re.escape(w)}\b", text, re.IGNORECASE) for w in forbidden_words)


def letter_frequency(text: str, *, letter: str, let_frequency: int, let_relation: str) -> bool:
    """A letter occurs so often, in either case."""
    return holds(text.lower().count(letter.strip().lower()), let_relation, let_frequency)


def response_language(text: str, *, language: str) -> bool:
    """The whole response is in one language (ISO 639-1); a text without any is."""
    return in_language(text, language)


def number_sentences(text: str, *, num_sentences: int, relation: str) -> bool:
    return holds(len(sentences(text)), relation, num_sentences)


def number_paragraphs(text: str, *, num_paragraphs: int) -> bool:
    """Exactly so many paragraphs, parted by ``***``; none between two dividers may be empty."""
    parts = [p.strip() for p in re.split(r"\s?\*\*\*\s?", text)]
    if not all(parts[1:-1]):
        return False
    return sum(map(bool, parts)) == num_paragraphs


def number_words(text: str, *, num_words: int, relation: str) -> bool:
    return holds(count_words(text), relation, num_words)


def nth_paragraph_first_word(text: str, *, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """So many paragraphs, parted by an empty line, and the n-th begins with the word."""
    parts = text.split("\n\n")
    filled = sum(bool(p.strip()) for p in parts)
    if nth_paragraph > filled or not parts[nth_paragraph - 1].strip():
        return False
    word = parts[nth_paragraph - 1].split()[0].lstrip("'").lstrip('"')
    paragraph_start = re.split(r"[.,?!'\"]", word, maxsplit=1)[0].lower()
    return filled == num_paragraphs and paragraph_start == first_word.lower()


def number_placeholders(text: str, *, num_placeholders: int) -> bool:
    """At least so many placeholders in square brackets."""
    return sum(map(_bracketed, text.split("\n"))) >= num_placeholders


def _bracketed(line: str) -> int:
    """Matches of ``\\[.*?\\]``, in linear time."""
    count, start = 0, line.find("[")
    while start >= 0 and (end := line.find("]", start)) >= 0:
        count, start = count + 1, line.find("[", end)
    return count


def postscript(text: str, *, postscript_marker: str) -> bool:
    """A postscript that begins with the marker, in any case; spaces within P.S. and P.P.S are allowed."""
    marker = POSTSCRIPTS.get(postscript_marker.strip())
    return re.search(marker or re.escape(postscript_marker.strip().lower()), text.lower()) is not None


def number_bullet_lists(text: str, *, num_bullets: int) -> bool:
    """Exactly so many Markdown bullets, ``*`` or ``-``."""
    lines = text.split("\n")  # of a long row of blank lines three say the same, and are quicker to match
    text = "\n".join(s for i, s in enumerate(lines) if i < 3 or any(x.strip() for x in lines[i - 3 : i + 1]))
    stars = re.findall(r"^\s*\*[^*].*$", text, re.MULTILINE)
    dashes = re.findall(r"^\s*-.*$", text, re.MULTILINE)
    return len(stars) + len(dashes) == num_bullets


def constrained_response(text: str) -> bool:
    """The response holds one of three fixed answers."""
    return any(option in text for option in OPTIONS)


def number_highlighted_sections(text: str, *, num_highlights: int) -> bool:
    """At least so many highlights, ``*so*``; one in double stars counts again."""
    single = [h for h in re.findall(r"\*[^\n*]*\*", text) if h.strip("*").strip()]
    double = [h for h in re.findall(r"\*\*[^\n*]*\*\*", text) if h[2:-2].strip()]
    return len(single) + len(double) >= num_highlights


def multiple_sections(text: str, *, section_spliter: str, num_sections: int) -> bool:
    """At least so many sections, each marked by the word and a number. (The data set spells the argument so.)"""
    return len(re.findall(rf"\s?{re.escape(section_spliter.strip())}\s?\d+\s?", text)) >= num_sections


def json_format(text: str) -> bool:
    """The response is JSON, in a code fence or not."""
    text = text.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def title(text: str) -> bool:
    """A title in double angular brackets, ``<<so>>``."""
    return any(t.lstrip("<").rstrip(">").strip() for t in re.findall(r"<<[^\n]+>>", text))


def two_responses(text: str) -> bool:
    """Two different responses, parted by six stars."""
    parts = [p.strip() for p in text.split("******")]
    filled = [p for p in parts if p]
    return all(parts[1:-1]) and len(filled) == 2 and filled[0] != filled[1]


def repeat_prompt(text: str, *, prompt_to_repeat: str) -> bool:
    """The response begins with the request, in any case."""
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


def end_checker(text: str, *, end_phrase: str) -> bool:
    """The response ends with the phrase, in any case; closing quotes do not count."""
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def capital_word_frequency(text: str, *, capital_frequency: int, capital_relation: str) -> bool:
    return holds(sum(w.isupper() for w in word_tokens(text)), capital_relation, capital_frequency)


def english_capital(text: str) -> bool:
    """English, without a lower-case letter."""
    return text.isupper() and response_language(text, language="en")


def english_lowercase(text: str) -> bool:
    """English, without a capital letter."""
    return text.islower() and response_language(text, language="en")


def no_comma(text: str) -> bool:
    return "," not in text


def quotation(text: str) -> bool:
    """The whole response stands in double quotes."""
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'
