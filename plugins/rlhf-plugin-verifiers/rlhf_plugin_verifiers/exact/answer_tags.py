"""Words between answer tags, compared as evaluations of reading comprehension compare them."""

from __future__ import annotations

import re
import unicodedata

from rlhf_core.data import Prompt
from rlhf_plugin_verifiers.exact.config import AnswerTagsConfig
from rlhf_plugin_verifiers.graded import Comparison, GradedVerifier

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
    before, closed, after = completion.rpartition("</think>")[2].rpartition(_CLOSE)
    _, opened, inside = before.rpartition(_OPEN)
    if not (opened and closed and inside.strip()) or (strict and after.strip()):
        return None
    return inside


def normalised(text: str, config: AnswerTagsConfig) -> str:
    """A text without what the settings forgive, its white space single.

    Marks within a number or a name stay (``3.5``, ``-5``, ``C++``), and so does a letter A that is no article
    (``vitamin A``). A text of nothing but articles and marks is left as it is.
    """
    plain = " ".join(unicodedata.normalize("NFKC", text).split())
    short = plain
    if config.ignore_punctuation:
        short = _MARKS.sub(" ", _DASHES.sub(" ", short.replace("\u2019", "'"))).strip()
    if config.ignore_articles:
        short = _ARTICLES.sub(" ", short)
    plain = " ".join(short.split()) or plain
    return plain.casefold() if config.ignore_case else plain
