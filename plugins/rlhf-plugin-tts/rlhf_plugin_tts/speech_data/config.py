"""Settings of the prompts for speech; importing this imports nothing heavy."""

from __future__ import annotations

from typing import ClassVar

from rlhf_core.config import ComponentConfig


class SpeechPromptsConfig(ComponentConfig):
    """Thirty sentences in six categories to be spoken; held out are twenty others."""

    name: str = "speech"
    component: ClassVar[str] = "rlhf_plugin_tts.speech_data.source:SpeechPrompts"
    downloads: ClassVar[bool] = False
    descriptions: bool = False
    """Each sentence also in six descriptions of a voice: 210 prompts instead of 30."""
