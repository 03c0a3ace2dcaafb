"""Word lists and word properties that IFBench's instructions speak of."""

from __future__ import annotations

import re
import string
import tomllib
from importlib.util import find_spec
from pathlib import Path

MARKS = string.punctuation + " "
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


LISTS = {name: words(text) for name, text in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items()}
NAMES = LISTS["names"]
CONJUNCTIONS = frozenset({"and", "but", "for", "nor", "or", "so", "yet"})
PRONOUNS = frozenset(LISTS["pronouns"])
STOP_WORDS = frozenset(LISTS["stop_words"])
"""English function words and the pieces of contractions, as NLTK's list has them."""
CAPITALS = LISTS["capitals"]
"""European capitals north of 45 degrees, by latitude."""
AFRICA = tuple(name.replace("_", " ") for name in LISTS["africa"])
"""What the names of Africa's countries hold, without accents and in lower case."""
MINOR = frozenset(LISTS["minor"])
"""Words that title case may leave in lower case."""
VERBS = frozenset(LISTS["verbs"])
"""Common verbs in the base form, and auxiliaries."""
NOT_VERBS = frozenset(LISTS["not_verbs"])
_VOWELS = re.compile(r"[aeiouy]+")
_EMOJI = re.compile(
    "[\U0001f000-\U0001faff\u2600-\u27bf\u2300-\u23ff\u2b00-\u2bff\u2190-\u21ff\u3030\u303d"
    "\u3297\u3299\u203c\u2049\u2122\u2139\u24c2\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u00a9\u00ae]"
)


def bare(text: str) -> str:
    """The text without ASCII punctuation."""
    return text.translate(_NO_PUNCTUATION)


def is_emoji(char: str) -> bool:
    """Whether one character is an emoji or a dingbat."""
    return _EMOJI.fullmatch(char) is not None


def is_verb(word: str) -> bool:
    """Whether a word that opens a sentence is a verb, by a list of common ones and by its ending."""
    word = word.lower().strip(MARKS)
    if word in VERBS or word in NOT_VERBS:
        return word in VERBS
    stems = [word[:-1], word[:-2], word[:-3], word[:-3] + "e", word[:-1] + "e"]
    inflected = word.endswith(("s", "ed", "ing")) and len(word) > 4
    return inflected and (word.endswith(("ing", "ed")) or any(s in VERBS for s in stems))


def syllables(word: str) -> int:
    """Syllables of an English word by its groups of vowels, at least one."""
    word = word.lower()
    count = len(_VOWELS.findall(word))
    if word.endswith("e") and not word.endswith(("le", "ee", "ye")) and count > 1:
        count -= 1
    if re.search(r"[^aeiouytd]ed$", word) and count > 1:
        count -= 1
    if re.search(r"[^aeiouyscxzgh]es$", word) and count > 1:
        count -= 1
    count += len(re.findall(r"ia(?!n$|l$)|eo|[^q]ua|io(?!n|u)|[^aeiou]ying$", word))
    return max(count, 1)


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
    """Whether a text is in a language (ISO 639-1); one without letters is in any. Of few words, where the detector
    guesses by chance, a likely language is enough, and common English words are English."""
    text = text.lower() if text.isupper() else text
    shares = _shares(text)
    if not shares or max(shares, key=shares.__getitem__) == language:
        return True
    all_words = re.findall(r"[^\W\d_]+", text.lower())
    if len(all_words) > SHORT:
        return False
    known = sum(word in ENGLISH for word in all_words)
    is_english = language == "en" and text.isascii() and 3 * known >= len(all_words)
    return is_english or shares.get(language, 0.0) >= LIKELY


def _shares(text: str) -> dict[str, float]:
    from langdetect import DetectorFactory, LangDetectException, detect_langs

    DetectorFactory.seed = SEED
    try:
        return {str(guess.lang): float(guess.prob) for guess in detect_langs(text)}
    except LangDetectException:
        return {}
