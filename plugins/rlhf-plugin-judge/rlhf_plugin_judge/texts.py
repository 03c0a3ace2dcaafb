"""Texts as the Messages API and the tokenizers take them."""

from __future__ import annotations

import logging
from functools import cache

from rlhf_core.rewards import Sample

log = logging.getLogger("rlhf.judge")


def clean(text: str) -> str:
    """A text that can be written as UTF-8: surrogate pairs joined, lone ones replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def read_completion(sample: Sample) -> str:
    """The completion as a judge reads it; says once that nobody hears the sound of one that is speech."""
    if sample.media:
        _say_unheard(sample.media[0].kind)
    return sample.completion


@cache
def _say_unheard(kind: str) -> None:
    log.warning(
        "judges read text: of a completion that is %s they see the names of its codes, so that their answers say "
        "nothing of it; for speech take rewards that listen (rlhf-plugin-tts)",
        kind,
    )
