"""Which language a text is in; needs the optional ``langdetect``."""

from __future__ import annotations

from importlib.util import find_spec

SEED = 0
"""langdetect draws samples of the text; a fixed seed gives one text one verdict."""


def installed() -> bool:
    """Whether languages can be detected here."""
    return find_spec("langdetect") is not None


def language_of(text: str) -> str | None:
    """ISO 639-1 code, ``zh-cn`` and ``zh-tw`` included; None for a text without letters.

    Raises:
        ImportError: ``langdetect`` is not installed.
    """
    from langdetect import DetectorFactory, LangDetectException, detect

    DetectorFactory.seed = SEED
    try:
        return str(detect(text))
    except LangDetectException:
        return None
