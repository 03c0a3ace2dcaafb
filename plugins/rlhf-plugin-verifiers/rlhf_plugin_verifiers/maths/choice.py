"""Multiple choice: which letter an answer picks."""

from __future__ import annotations

import re

from rlhf_plugin_verifiers.maths.text import boxes, canonical, own_part

LETTERS = "ABCDEFGHIJ"
_ALONE = re.compile(rf"\(?([{LETTERS}])[).]?")
_LEADING = re.compile(rf"\s*[*(\[]{{0,3}}([{LETTERS}])(?:[)\]*.:,。、，：]|\s*$|\s*\n|\s+(?=[A-Z(]))")
_STATED = re.compile(
    rf"(?:answer|choice|option|réponse|respuesta|antwort|答案|选项)[^\n.]{{0,60}}?(?<![A-Za-z])[(\[*]{{0,3}}([{LETTERS}])"
    r"(?![A-Za-z'])",
    re.IGNORECASE,
)
_STANDING = re.compile(rf"(?<![A-Za-z'])[(\[*]{{0,3}}([{LETTERS}])[)\]*.,:。]{{0,3}}(?=\s|$)")
_DENIED = re.compile(r"(?:not|isn't|neither|nor|never|不是|or|and)\s*[(*]{0,3}$", re.IGNORECASE)


def only_letter(answer: str) -> str | None:
    """The letter that an answer consists of, as in ``B``, ``(B)`` or ``\\text{(B)}``; None if it is anything else."""
    match = _ALONE.fullmatch(canonical(answer))
    return match[1] if match else None


def chosen_letter(text: str) -> str | None:
    """The letter that a completion picks: boxed, stated as the answer, leading, or else the last that stands alone.

    Letters that the text denies ("not A", "A or B") do not count; nor does the article at the start of a sentence.

    Example:
        >>> chosen_letter("It's not A because it makes no sense, therefore I think it's B")
        'B'
    """
    text = own_part(text).replace("$", "")
    boxed = boxes(text)
    if boxed:
        return only_letter(boxed[-1][2])
    for pattern in (_STATED, _LEADING, _STANDING):
        letters = [m for m in pattern.finditer(text) if _counts(m, text, pattern)]
        if pattern is _LEADING:
            letters = [m for m in letters if m.start() == 0][:1]
        if letters:
            return letters[-1][1]
    return None


def _counts(match: re.Match[str], text: str, pattern: re.Pattern[str]) -> bool:
    start = match.start(1)
    if not text[start].isupper() or _DENIED.search(text[max(0, start - 12) : start]):
        return False
    article = text[start] == "A" and re.match(r"\s+[a-z]", text[start + 1 : start + 4]) is not None
    return not article or pattern is _LEADING
