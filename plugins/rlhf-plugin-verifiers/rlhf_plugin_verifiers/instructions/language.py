"""Which language a text is in; needs the optional ``langdetect``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec

from rlhf_plugin_verifiers.instructions.lexicon import STOP_WORDS, VERBS, words

SEED = 0
"""langdetect draws samples of the text; a fixed seed gives one text one verdict."""
LIKELY = 0.1
"""Share of the detector's probability at which a short text's language is accepted."""
SHORT = 12
"""Words; the detector decides alone on longer texts."""
_SHARED = frozenset(words("no me he a i in an am so do on as is be s t m o y re ve d ll ma de are man on come die was"))
"""English words that other languages have too."""
ENGLISH = (STOP_WORDS | VERBS | frozenset(words("hello hi yes ok okay thanks thank please dear like good"))) - _SHARED


def installed() -> bool:
    """Whether languages can be detected here."""
    return find_spec("langdetect") is not None


def in_language(text: str, language: str) -> bool:
    """Whether a text is in a language (ISO 639-1, ``zh-cn`` and ``zh-tw`` included); one without letters is in any.

    Capitals are read as lower case, for the detector's profiles hardly know any. Its guess of a few words is mostly
    chance: there a language counts that it finds likely, but not likeliest, and common English words are English.
    """
    text = text.lower() if text.isupper() else text
    shares = _shares(text)
    if not shares or max(shares, key=shares.__getitem__) == language:
        return True
    all_words = re.findall(r"[^\W\d_]+", text.lower())
    if len(all_words) > SHORT:
        return False
    return shares.get(language, 0.0) >= LIKELY or (language == "en" and text.isascii() and _known_english(all_words))


def _shares(text: str) -> dict[str, float]:
    from langdetect import DetectorFactory, LangDetectException, detect_langs

    DetectorFactory.seed = SEED
    try:
        return {str(guess.lang): float(guess.prob) for guess in detect_langs(text)}
    except LangDetectException:
        return {}


def _known_english(all_words: Sequence[str]) -> bool:
    return 3 * sum(w in ENGLISH for w in all_words) >= len(all_words)
