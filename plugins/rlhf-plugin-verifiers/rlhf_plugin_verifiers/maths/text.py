"""Which part of a completion is the policy's own answer, and how it is written."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

MAX_CHARACTERS = 20_000
"""Only the end of a longer text is read: an answer stands there, and reading must stay linear and quick."""

MAX_UNCLOSED = 20
"""Boxes that are never closed before the search for others ends; each costs a look at the rest of the text."""

_FOLLOW_UP = re.compile(
    r"<\|im_start\|>|<\|endoftext\|>|<\|eot_id\|>"
    r"|(?:^|\n|(?<=[.!?\]}$])[ \t]+)[\s#*>\[-]{0,8}"
    r"(?:(?:next|new|another|follow-up)\s+)?(?:question|problem|exercise|user|human|q)\b[ \t]*#?\d{0,4}[\]*]{0,3}[ \t]*"
    r"(?:[:\]]|\*\*)",
    re.IGNORECASE,
)
"""Where a model begins to write the next question, or to write the other side's turn."""
_TAGS = r"(?:(?:seed:)?think(?:ing)?|thoughts?|reasoning)\s*>"
_START_OF_REASONING = re.compile(
    rf"<\s*{_TAGS}|\[THINK\]|◁think▷|<\|(?:begin_of_thought|START_THINKING|channel\|>(?:analysis|commentary))",
    re.IGNORECASE,
)
_END_OF_REASONING = re.compile(
    rf"<\s*/\s*{_TAGS}|\[/THINK\]|◁/think▷|<\|(?:end_of_thought|END_THINKING)\|>|<\|channel\|>final", re.IGNORECASE
)
"""As R1, Qwen, Seed-OSS, EXAONE, Mistral, Kimi, OpenThoughts and Sky-T1, Command A and gpt-oss mark it."""
_DIGIT = re.compile(r"[^\W\D]")


def after_reasoning(text: str) -> str:
    """The text after ``</think>``; nothing where reasoning opened by ``<think>`` never ends: what stands before it is
    no final answer either."""
    text = _END_OF_REASONING.split(text)[-1]
    return "" if _START_OF_REASONING.search(text) else text


def own_part(text: str) -> str:
    """The text :func:`after_reasoning`, up to the first follow-up question after a digit."""
    text = after_reasoning(text)
    digit = _DIGIT.search(text)
    if digit is None:
        return text[-MAX_CHARACTERS:]
    cut = _FOLLOW_UP.search(text, digit.end())
    return (text[: cut.start()] if cut else text)[-MAX_CHARACTERS:]


def plain_digits(text: str) -> str:
    """Every decimal digit of Unicode as ASCII, fullwidth and Arabic ones included, and decimals that repeat as
    fractions; superscripts stay."""
    text = _REPEATING.sub(_as_fraction, text)
    if text.isascii():
        return text
    return "".join(str(unicodedata.decimal(c)) if unicodedata.category(c) == "Nd" else _ASCII.get(c, c) for c in text)


_OVER = r"\\(?:overline|bar|dot)\s*"
_REPEATING = re.compile(
    rf"(?<![\d.,])(\d{{0,30}})\.(\d{{0,30}})(?:{_OVER}(?:\{{\s*(\d{{1,30}})\s*\}}|(\d))"
    rf"(?:(\d{{0,30}}){_OVER}(?:\{{(\d)\}}|(\d)))?)(?!\d)"
)
r"""``0.1\overline{6}``, ``0.\dot 3``, ``0.\dot{1}4285\dot{7}``."""


def _as_fraction(match: re.Match[str]) -> str:
    before, once = match[1] or "0", match[2]
    again = "".join(part or "" for part in match.groups()[2:])
    value = Fraction(int(before + once + again) - int(before + once), 10 ** len(once) * (10 ** len(again) - 1))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


_ASCII = {
    "\u2212": "-",
    "\u00a0": " ",
    "\uff0e": ".",
    "\uff0c": ",",
    "\uff05": "%",
    "\uff0d": "-",
    "\uff0b": "+",
    "\u2009": " ",
}

UNSPACED = r"\u3005-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORDS = re.compile(rf"[{UNSPACED}]+")
_SCALED = re.compile(r"(\d+(?:\.\d+)?)\s*([万萬亿億])")
_PERCENT = re.compile(r"百分之\s*(\d+(?:\.\d+)?)")
_HALF = re.compile(rf"(\d+)([{UNSPACED}]{{0,2}})半(?!\d)")
_PART_OF_NUMBER = re.compile(r"^[十百千万萬亿億兆半零点點分又](?![克米升瓦钟])|[负負零点點第之又]$")
_PLUS = re.compile(r"(?:(?<=\bis)|(?<=[:=(\[{,$]))(\s*)\+(?=\s?\$?[\d.\\])")


def unspaced_numbers(text: str) -> str:
    """Numbers without the CJK words that they touch, large units multiplied out; half, minus, point stay."""
    if text.isascii():
        return text
    text = _SCALED.sub(lambda m: str(_multiplied(m[1], m[2])), _PERCENT.sub(r"\1%", text))
    text = _HALF.sub(r"\1.5\2", text)
    return _WORDS.sub(lambda m: m[0] if _PART_OF_NUMBER.search(m[0]) else " ", text)


def other_words(a: str, b: str) -> bool:
    """Whether both of two answers have Chinese, Japanese or Korean words, and not a letter of them in common."""
    words_a, words_b = ({c for m in _WORDS.finditer(t) for c in m[0]} for t in (a, b))
    return bool(words_a) and bool(words_b) and words_a.isdisjoint(words_b)


def _multiplied(number: str, unit: str) -> int | float:
    value = Fraction(number) * (10**4 if unit in "万萬" else 10**8)
    return int(value) if value.denominator == 1 else float(value)


def without_plus(text: str) -> str:
    """A text whose numbers have no plus sign of their own."""
    return _PLUS.sub(r"\1", text)


_BOX = re.compile(r"\\(?:boxed|fbox)\s*(\{|$)?")


def boxes(text: str) -> list[tuple[int, int, str]]:
    r"""``(start, end, content)`` of every closed ``\boxed{...}``, ``\fbox{...}`` or ``\boxed 5``; nested ones only
    once."""
    closed_boxes: list[tuple[int, int, str]] = []
    end_of_last = unclosed = 0
    for match in _BOX.finditer(text):
        if match.start() < end_of_last:
            continue
        end = closing_brace(text, match.end()) if match[1] else _word_end(text, match.end())
        if end is None:
            unclosed += 1
            if unclosed == MAX_UNCLOSED:
                break
            continue
        content = text[match.end() : end]
        closed_boxes.append((match.start(), end + bool(match[1]), content.strip()))
        end_of_last = end
    return closed_boxes


def last_box_is_open(text: str) -> bool:
    """Whether the last box of a text is never closed: the text breaks off in it."""
    opened = [m for m in _BOX.finditer(text) if m[1] is not None]
    return bool(opened) and closing_brace(text, opened[-1].end()) is None


def closing_brace(text: str, start: int) -> int | None:
    """Place of the brace that closes the one before ``start``."""
    depth = 1
    for match in re.compile(r"\\[{}]|[{}]").finditer(text, start):
        depth += (match[0] == "{") - (match[0] == "}")
        if depth == 0:
            return match.start()
    return None


def _word_end(text: str, start: int) -> int | None:
    match = re.compile(r"[\w.,/+-]*\w").match(text, start)
    return match.end() if match else None


_WRAPPER = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|mathsf|operatorname|bf|rm)\s*\{([^{}]*)\}")
_NOISE = re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\[,;:! ]|\\(?:displaystyle|quad|qquad)(?![a-z])|\\?\$|~")
_FRAC = re.compile(r"\\[dtc]frac(?![a-z])")
_SHORT_FRAC = re.compile(r"\\frac\s*(?:(\d)\s*(\d)|\{([^{}]+)\}\s*(\d)|(\d)\s*\{([^{}]+)\})")


_GROUPED = re.compile(r"-?\d{1,3}(?: \d{3})+(?:\.\d+)?")


def unwrapped(text: str) -> str:
    """A text without font commands, dollars and LaTeX's spaces; ordinary spaces stay."""
    text = re.sub(r"\\[,;:! ]|\\q?quad(?![a-z])|~", " ", plain_digits(text).replace("$", ""))
    for _ in range(3):
        text = _WRAPPER.sub(r"\1", text)
    return " ".join(text.split()).removesuffix(".")


def canonical(text: str) -> str:
    """One spelling of what looks alike in print; equal results mean equal answers."""
    text = plain_digits(text.strip()).replace("\\\\", "\\") if "\\begin" not in text else plain_digits(text.strip())
    text = re.sub(r"(?<=\d)(?:\s|\\[,;: ]|~|\\q?quad(?![a-z]))+(?=\d)", " ", text)
    text = _FRAC.sub(r"\\frac", _NOISE.sub("", text))
    text = _SHORT_FRAC.sub(_braced, text)
    for _ in range(3):
        text = _WRAPPER.sub(r"\1", text)
    text = re.sub(r"(?<=\d)(?:\{,\}|,)(?=\d{3}(?!\d))", "", text) if re.fullmatch(r"-?[\d,{}.]+", text) else text
    text = re.sub(r" ", "", text) if _GROUPED.fullmatch(text) else text
    text = re.sub(r"\s+(?!(?<=\d )\d)", "", text).removesuffix(".").rstrip("\\")
    text = re.sub(r"^(-?)\.(?=\d)", r"\g<1>0.", text)
    return re.sub(r"^(-?\d+)\.0+$", r"\1", text)


def _braced(match: re.Match[str]) -> str:
    top, bottom = match[1] or match[3] or match[5], match[2] or match[4] or match[6]
    return f"\\frac{{{top}}}{{{bottom}}}"
