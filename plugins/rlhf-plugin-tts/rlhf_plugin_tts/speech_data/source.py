"""The catalogue as a dataset of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_plugin_tts.speech_data.catalogue import DESCRIPTIONS, VALIDATION, sentences
from rlhf_plugin_tts.speech_data.config import SpeechPromptsConfig


class SpeechPrompts:
    """Every sentence with the voice left open, or in every description; :data:`VALIDATION` is held out."""

    def __init__(self, config: SpeechPromptsConfig) -> None:
        self.config = config

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Rows with a ``prompt`` of messages and, in training, a ``category``."""
        if split != "train":
            return [_row(f"validation-{n}", text, "") for n, text in enumerate(VALIDATION, 1)]
        voices = ["", *DESCRIPTIONS.values()] if self.config.descriptions else [""]
        return [{**_row(name, text, v), "category": kind} for name, kind, text in sentences() for v in voices]


def _row(name: str, text: str, description: str) -> dict[str, Any]:
    turns = [{"role": "system", "content": description}] if description else []
    return {"id": f"{name} {description}".strip(), "prompt": [*turns, {"role": "user", "content": text}]}
