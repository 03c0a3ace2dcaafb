"""Verifiers that compare characters."""

from __future__ import annotations

import re
import unicodedata

from rlhf_core.data import Prompt
from rlhf_plugin_verifiers.exact.config import AnswerTagsConfig, ChoiceConfig, ExactConfig, RegexConfig
from rlhf_plugin_verifiers.graded import Comparison, GradedVerifier
from rlhf_plugin_verifiers.maths.choice import chosen_letter, only_letter, option_letter
from rlhf_plugin_verifiers.maths.text import after_reasoning, boxes, own_part

_STATED = re.compile(r"(?:\banswer\s+is|\banswer\s*:)\s*([^\n]*)", re.IGNORECASE)


def string_verifier(config: ExactConfig) -> GradedVerifier:
    def plain(text: str) -> str:
        text = " ".join(text.split())
        text = without_marks(text) if config.ignore_punctuation else text
        return text.casefold() if config.ignore_case else text

    def compare(completion: str, prompt: Prompt) -> Comparison:
        stated = completion if config.mode == "strict" else _last_stated(completion)
        right = bool(stated.strip()) and plain(stated) == plain(str(prompt.answer))
        return Comparison(bool(stated.strip()), right, f"stated {stated.strip()[:200]!r}")

    return GradedVerifier(config, compare)


_QUOTES = {'"': '"', "'": "'", "`": "`", "*": "*", "\u201c": "\u201d", "\u2018": "\u2019"}


def without_marks(text: str) -> str:
    """A text without the quotes, stars or backticks around it and the sentence's punctuation after it."""
    while True:
        short = text.rstrip(".,;:!?\u3002\uff01\uff1f").strip()
        if len(short) > 1 and _QUOTES.get(short[0]) == short[-1]:
            short = short[1:-1].strip()
        if short in ("", text):
            return text
        text = short


def _last_stated(completion: str) -> str:
    text = own_part(completion)
    statements = [m[1] for m in _STATED.finditer(text) if m[1].strip()]
    return statements[-1] if statements else next((line for line in reversed(text.splitlines()) if line.strip()), "")


def choice_verifier(config: ChoiceConfig) -> GradedVerifier:
    def compare(completion: str, prompt: Prompt) -> Comparison:
        only = _only_letter(completion)
        letter = only if config.mode == "strict" else chosen_letter(completion)
        return Comparison(
            only is not None, letter is not None and letter == option_letter(str(prompt.answer)), f"picked {letter}"
        )

    return GradedVerifier(config, compare)


def _only_letter(completion: str) -> str | None:
    """The letter that a completion consists of, boxed or not."""
    boxed = boxes(completion)
    if not boxed:
        return only_letter(completion)
    start, end, inside = boxed[-1]
    return None if (completion[:start] + completion[end:]).strip(" \t\n$.*") else only_letter(inside)


def regex_verifier(config: RegexConfig) -> GradedVerifier:
    pattern = re.compile(config.pattern, re.DOTALL | (re.IGNORECASE if config.ignore_case else 0))

    def compare(completion: str, prompt: Prompt) -> Comparison:
        matches = (
            [pattern.fullmatch(completion.strip())] if config.mode == "strict" else [*pattern.finditer(completion)]
        )
        match = matches[-1] if matches else None
        if match is None:
            return Comparison(False, False, "no match")
        stated = match[1] if pattern.groups else match[0]
        right = not pattern.groups or _same(stated or "", str(prompt.answer), config.ignore_case)
        return Comparison(True, right, f"matched {str(stated)[:200]!r}")

    return GradedVerifier(config, compare)


def _same(a: str, b: str, ignore_case: bool) -> bool:
    a, b = a.strip(), b.strip()
    return a.casefold() == b.casefold() if ignore_case else a == b


_OPEN, _CLOSE = "<answer>", "</answer>"
_ARTICLES = re.compile(r"\b(?:[Tt]he|THE|an|An|AN|a)\b|^A(?=\s+[a-z])")
_DASHES = re.compile(r"(?<=[^\W\d])[-\u2010-\u2015](?=[^\W\d])")
_MARKS = re.compile(
    r"""(?<!\d)[.,](?=\s|$)|(?<=\d)[.,](?=\s|$)|,(?!\d{3})|[;:!?"\u201c\u201d\u2018\u2019`*]|'(?!\w)|(?<!\w)'"""
)


def answer_tags_verifier(config: AnswerTagsConfig) -> GradedVerifier:
    def compare(completion: str, prompt: Prompt) -> Comparison:
        inside = between_tags(completion, strict=config.mode == "strict")
        if inside is None:
            return Comparison(False, False, f"no {_OPEN} ... {_CLOSE} in the required form")
        stated, reference = (normalised(text, config) for text in (inside, str(prompt.answer)))
        return Comparison(True, bool(stated) and stated == reference, f"stated {inside.strip()[:200]!r}")

    return GradedVerifier(config, compare, config.format_weight)


def between_tags(completion: str, *, strict: bool) -> str | None:
    """What stands between the answer tags, None where the form is broken; modes as in ``AnswerTagsConfig``."""
    if strict and (completion.count(_OPEN), completion.count(_CLOSE)) != (1, 1):
        return None
    before, closed, after = after_reasoning(completion).rpartition(_CLOSE)
    _, opened, inside = before.rpartition(_OPEN)
    if not (opened and closed and inside.strip()) or (strict and after.strip()):
        return None
    return inside


def normalised(text: str, config: AnswerTagsConfig) -> str:
    """A text without what the settings forgive; marks in a number or name stay (``3.5``, ``C++``, ``vitamin A``)."""
    plain = " ".join(unicodedata.normalize("NFKC", text).split())
    short = plain
    if config.ignore_punctuation:
        short = _MARKS.sub(" ", _DASHES.sub(" ", short.replace("\u2019", "'"))).strip()
    if config.ignore_articles:
        short = _ARTICLES.sub(" ", short)
    plain = " ".join(short.split()) or plain
    return plain.casefold() if config.ignore_case else plain
