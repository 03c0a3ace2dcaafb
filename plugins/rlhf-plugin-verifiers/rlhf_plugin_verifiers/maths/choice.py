"""Multiple choice: which letter an answer picks."""

from __future__ import annotations

import re
from typing import NamedTuple

from rlhf_plugin_verifiers.maths.text import UNSPACED, boxes, canonical, last_box_is_open, own_part, unwrapped

LETTERS = "ABCDEFGHIJ"
_ALONE = re.compile(rf"\(?([{LETTERS}])[).]?")
_LEADING = re.compile(rf"\s*[*(\[]{{0,3}}([{LETTERS}])(?:[)\]*.:,。、，：]|\s*$|\s*\n|\s+(?=[A-Z(])|(?=[{UNSPACED}]))")
_STATED = re.compile(
    rf"(?:answer|choice|option|réponse|respuesta|antwort|答案|选|選)[^\n.]{{0,60}}?(?<![A-Za-z])[(\[*]{{0,3}}([{LETTERS}])"
    r"(?![A-Za-z'])",
    re.IGNORECASE,
)
_STANDING = re.compile(rf"(?<![A-Za-z'])[(\[*]{{0,3}}([{LETTERS}])[)\]*.,:。]{{0,3}}(?=\s|$|[{UNSPACED}])")
_WRONG = re.compile(rf"[)\]*.]{{0,3}}\s*(?:不是(?!\s*[{LETTERS}])|不对|不對|错|錯|是错|是錯)")
_DENIED = re.compile(r"(?:not|isn't|neither|nor|never|不是|不选|不選|or|and)\s*[(*]{0,3}$", re.IGNORECASE)

_OPTION = re.compile(
    rf"(?:\(([{LETTERS}])\)[.:]?\s*|([{LETTERS}])(?:[.:)]\s+|[\u3001\uff1a\uff0e]\s*))(\S.*)", re.DOTALL
)
_OPERATOR = re.compile(
    r"[+*/=<>^_&|]|\\(?:c[au]p|cdot|times|[lg]eq?|n?eq|in|subset|setminus|to)(?![a-z])|.*\\to(?![a-z])"
)


class Option(NamedTuple):
    """A letter with what it stands for."""

    letter: str
    text: str


def option(answer: str) -> Option | None:
    """The option that an answer is, as in ``(D) Alina``, ``D. Alina`` or ``\\textbf{(D)}\\ 12``; None if it is none."""
    match = _OPTION.fullmatch(unwrapped(answer))
    if match is None or _OPERATOR.match(match[3]):
        return None
    return Option(match[1] or match[2], match[3])


def option_letter(answer: str) -> str | None:
    """The letter that an answer is, alone or with what it stands for."""
    labelled = option(answer)
    return only_letter(answer) or (labelled.letter if labelled else None)


def only_letter(answer: str) -> str | None:
    """The letter that an answer consists of, as in ``B``, ``(B)`` or ``\\text{(B)}``; None if it is anything else."""
    match = _ALONE.fullmatch(canonical(answer))
    return match[1] if match else None


def chosen_letter(text: str, *, explicit: bool = False) -> str | None:
    """The letter that a completion picks: boxed, stated, leading, or (unless ``explicit``) the last that stands alone;
    not one that is denied ("not A", "A or B"), nor the article."""
    text = own_part(text).replace("$", "")
    boxed = boxes(text)
    if last_box_is_open(text):
        return None
    if boxed:
        return option_letter(boxed[-1][2])
    for pattern in (_STATED, _LEADING) if explicit else (_STATED, _LEADING, _STANDING):
        matches = [m for m in (pattern.match(text),) if m] if pattern is _LEADING else pattern.finditer(text)
        letters = [m for m in matches if _counts(m, text, pattern)]
        if letters:
            return letters[-1][1]
    return None


def _counts(match: re.Match[str], text: str, pattern: re.Pattern[str]) -> bool:
    start = match.start(1)
    if not text[start].isupper() or _DENIED.search(text[max(0, start - 12) : start]) or _WRONG.match(text, start + 1):
        return False
    article = text[start] == "A" and re.match(r"\s+[a-z]", text[start + 1 : start + 4]) is not None
    return not article or pattern is _LEADING
