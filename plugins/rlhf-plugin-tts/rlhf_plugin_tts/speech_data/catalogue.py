"""Sentences to be spoken and six descriptions of a voice, by ``sentences.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

_TEXTS = json.loads(Path(__file__).with_name("sentences.json").read_text())
SENTENCES: Mapping[str, tuple[str, ...]] = MappingProxyType({k: tuple(v) for k, v in _TEXTS["catalogue"].items()})
"""Category -> five sentences."""
UNSEEN: tuple[str, ...] = tuple(_TEXTS["unseen"])
"""Forty to measure with at the end, none of them in the catalogue; for the report only: nothing is tuned on them."""
VALIDATION: tuple[str, ...] = tuple(_TEXTS["validation"])
"""Twenty others, which a training run evaluates on, and settings are chosen by."""

DESCRIPTIONS: Mapping[str, str] = MappingProxyType(_TEXTS["descriptions"])
"""Name -> what the system turn says."""

CONTRASTS = (("lively", "flat"), ("clear", "rough"), ("calm", "hurried"))
"""(better, worse) descriptions of pairs by description. Which is better is this table's opinion, not a listener's."""


def sentences() -> list[tuple[str, str, str]]:
    """(name, category, text) of every sentence. Example: ``("expressive-2", "expressive", "What a ...")``"""
    return [(f"{kind}-{n}", kind, text) for kind, texts in SENTENCES.items() for n, text in enumerate(texts, 1)]
