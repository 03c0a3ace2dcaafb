"""The 25 functions that a row of RLVR-GSM-MATH-IF-Mixed-Constraints names (Lambert et al. 2024, arXiv:2411.15124), by
what the row's constraint says; the published ones pay for less. Arguments as in the rows."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlhf_plugin_verifiers.instructions.by_text import (
    BY_TEXT,
    counted_words,
    end_checker,
    json_format,
    multiple_sections,
    no_comma,
    nth_paragraph_first_word,
    occurrences,
    postscript,
    quotation,
    repeat_prompt,
    response_language,
    two_responses,
    words,
)
from rlhf_plugin_verifiers.instructions.sentences import sentences

validate_response_language = response_language
verify_postscript = postscript
validate_json_format = json_format
validate_two_responses = two_responses
validate_end = end_checker
validate_quotation = quotation
validate_no_commas = no_comma
validate_forbidden_words = BY_TEXT["keywords:forbidden_words"]
validate_title = BY_TEXT["detectable_format:title"]


def amounts(count: int, wanted: float, quantifier: str, tolerance: float) -> bool:
    """Whether a count is ``at least``, ``at most`` or ``around`` what is wanted."""
    if quantifier == "around":
        return abs(count - wanted) <= tolerance
    return count >= wanted if quantifier == "at least" else count <= wanted


def verify_keywords(text: str, *, keyword_list: Sequence[str]) -> bool:
    return all(occurrences(text, k) for k in keyword_list)


def verify_keyword_frequency(text: str, *, word: str, N: float) -> bool:
    """Exactly N times, as a whole word."""
    return occurrences(text, word) == N


def verify_letter_frequency(text: str, *, letter: str, N: float) -> bool:
    """Exactly N times, in this case."""
    return text.count(letter.strip()) == N


def verify_paragraph_count(text: str, *, N: float) -> bool:
    """N paragraphs with text, parted by ``* * *``."""
    parts = [words(part) for part in text.split("* * *")]
    return len(parts) == N and all(parts)


def validate_word_constraint(text: str, *, N: float, quantifier: str) -> bool:
    """Around: within a tenth."""
    return amounts(len(counted_words(text)), N, quantifier, max(round(N * 0.1), 1))


def verify_sentence_constraint(text: str, *, N: float, quantifier: str) -> bool:
    """Around: one more or less."""
    return amounts(len(sentences(text)), N, quantifier, 1)


def validate_paragraphs(text: str, *, N: int, first_word: str, i: int) -> bool:
    return nth_paragraph_first_word(text, num_paragraphs=N, nth_paragraph=i, first_word=first_word)


def validate_placeholders(text: str, *, N: float) -> bool:
    return BY_TEXT["detectable_content:number_placeholders"](text, num_placeholders=N)


def verify_bullet_points(text: str, *, N: float) -> bool:
    return BY_TEXT["detectable_format:number_bullet_lists"](text, num_bullets=N)


def validate_choice(text: str, *, options: Sequence[str]) -> bool:
    """One of the options as a whole, and no other that is not a part of it."""
    named = {option for option in options if occurrences(text, option)}
    return len({option for option in named if not any(option in other for other in named - {option})}) == 1


def validate_highlighted_sections(text: str, *, N: float) -> bool:
    return BY_TEXT["detectable_format:number_highlighted_sections"](text, num_highlights=N)


def validate_sections(text: str, *, N: int, section_splitter: str) -> bool:
    """Exactly N."""
    return multiple_sections(text, section_spliter=section_splitter, num_sections=N) and not multiple_sections(
        text, section_spliter=section_splitter, num_sections=N + 1
    )


def validate_repeat_prompt(text: str, *, original_prompt: str) -> bool:
    return repeat_prompt(text, prompt_to_repeat=original_prompt)


def validate_uppercase(text: str) -> bool:
    """Without a lower-case letter; the language is not looked at."""
    return text.isupper()


def validate_lowercase(text: str) -> bool:
    """Without a capital letter; the language is not looked at."""
    return text.islower()


def validate_frequency_capital_words(text: str, *, N: float, quantifier: str) -> bool:
    """Words of capital letters alone; around: within a tenth."""
    count = len(re.findall(r"(?<![^\W_])[A-Z]+(?![^\W_])", text))
    return amounts(count, N, quantifier, max(round(N * 0.1), 1))
