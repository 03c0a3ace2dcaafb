from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlhf_study.config import StudyConfig


class PocketVoiceConfig(StudyConfig):
    """How does pocket-voice sound? Word errors and two automatic MOS beside flite, which it learnt from, on forty
    sentences that neither was tuned on; pocket-voice samples each at three temperatures. What is not installed is left
    out."""

    name: str = "pocket_voice"
    component: ClassVar[str] = "rlhf_studies.pocket_voice.run:PocketVoice"
    smoke: ClassVar[Mapping[str, Any]] = {"temperatures": (1.0,), "sentences": 2}

    seeds: tuple[int, ...] = (0,)
    voice: str = "pocket-voice"
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    sentences: int = Field(default=40, ge=2, le=40)
