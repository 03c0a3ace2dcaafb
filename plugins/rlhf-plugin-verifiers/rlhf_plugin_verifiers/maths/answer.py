"""What a text states as its answer, in LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from rlhf_plugin_verifiers.maths.text import boxes, last_box_is_open, own_part, plain_digits, without_plus
from rlhf_plugin_verifiers.number_forms import numbers, plain


class FinalAnswer(NamedTuple):
    """The answer of a text; ``boxed`` if it stood in ``\\boxed{}``."""

    latex: str
    boxed: bool


NO_ANSWER = FinalAnswer("", False)
"""Of a text that cannot have an answer, whatever else stands in it: its last box is never closed."""

_WORDS = re.compile(r"[A-Za-z]+")
_TEXT_AND = re.compile(r"\$?\s*(?:\\(?:text|textrm|mathrm)\{\s*,?\s*(?:and|or)\s*\}|\b(?:and|or)\b)\s*\$?")


def boxed_answer(text: str) -> str | None:
    """Content of the last box; of the last boxes, joined by commas, where only "and", "or" or commas part them."""
    all_boxes = boxes(text)
    if not all_boxes or last_box_is_open(text):
        return None
    run = [all_boxes[-1]]
    for before in reversed(all_boxes[:-1]):
        if not _adjoining(text[before[1] : run[0][0]]):
            break
        run.insert(0, before)
    inside = ", ".join(_TEXT_AND.sub(", ", content) for _, _, content in run)
    after = re.match(r"\s*\$?\s*(?:\\?%|percent(?:age)?\b|pct\b)", text[run[-1][1] : run[-1][1] + 20])
    return re.sub(r"\\?\$", "", inside) + (r"\%" if after else "")


def _adjoining(gap: str) -> bool:
    """Whether two boxes with this text between them are one list: one joiner at most, and hardly another word."""
    if len(gap) > 60:
        return False
    words = [w.lower() for w in _WORDS.findall(re.sub(r"\\[a-z]+", " ", gap))]
    joiners = sum(w in ("and", "or") for w in words)
    if not words:
        return True
    return joiners == 1 and len(words) <= 5


_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}|[\u0400-\u1fff\u3040-\uffff]")
_MATH_WORDS = frozenset({"sin", "cos", "tan", "log", "sqrt", "exp", "max", "min", "gcd", "lcm", "mod"})
_FINAL = re.compile(r"final answer is", re.IGNORECASE)
_FOREIGN = re.compile(
    r"(?:réponse|respuesta|resposta|risposta|antwort|odpowiedź|ответ|答案|答え|정답)[^\n\d:：]{0,40}[:：是]([^\n]{1,200})",
    re.IGNORECASE,
)
_DELIMITED = re.compile(r"\$|\\\(|\\\[|\\begin\{(?:align|equation)")
_STRIPPED = re.compile(r"\\(?:text|textbf|mathrm|begin|end|operatorname)\s*\{[^{}]*\}")


def is_formula(text: str) -> bool:
    """Whether a text is nothing but one formula without delimiters, as reference answers usually are."""
    text = text.strip()
    if not text or len(text) > 400 or "\n\n" in text or _DELIMITED.search(text) or "boxed" in text:
        return False
    words = [w for w in _PROSE.findall(_STRIPPED.sub(" ", text)) if w.lower() not in _MATH_WORDS]
    return not words


def final_answer(text: str) -> FinalAnswer | None:
    """The boxed answer, one stated in another language, or a text that is a formula; :data:`NO_ANSWER` where the last
    box is never closed, None where math-verify must look."""
    text = without_plus(plain_digits(own_part(text)))
    if last_box_is_open(text):
        return NO_ANSWER
    all_boxes = boxes(text)
    if all_boxes and not _FINAL.search(text, all_boxes[-1][1]):
        return FinalAnswer(boxed_answer(text) or "", True)
    text = text.replace("\\$", "")
    if is_formula(text):
        return FinalAnswer(text.strip().removesuffix("."), False)
    statement = None if all_boxes else _last(_FOREIGN.finditer(text))
    values = numbers(plain(statement[1])) if statement else []
    return FinalAnswer(str(values[0].value), False) if values else None


_ANSWER_IS = re.compile(r"\banswer(?:\s+is|\s*:)\s*[:*]{0,3}([^\n]{1,200})", re.IGNORECASE)


def last_statement(text: str) -> str | None:
    """What follows the last "answer is" or "Answer:", without the marks around it."""
    statement = _last(_ANSWER_IS.finditer(own_part(text)))
    return statement[1].strip(" \t*.,;:!\"'`$") if statement else None


def _last(matches: Iterator[re.Match[str]]) -> re.Match[str] | None:
    return next(iter(reversed(list(matches))), None)
