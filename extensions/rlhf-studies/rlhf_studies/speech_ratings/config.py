from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from rlhf_study.config import StudyConfig


class SpeechRatingsConfig(StudyConfig):
    """Which local speech reward agrees with listeners? Rank correlation with MUSHRA scores, per stimulus and pooled,
    with and without the hidden reference: 8 sentences, as recorded and through 7 codecs, by 10 or 11 listeners.
    Nothing is fitted. ``wer`` compares with the recogniser's transcript of the recording. DistillMOS is left out where
    it is not installed."""

    name: str = "speech_ratings"
    component: ClassVar[str] = "rlhf_studies.speech_ratings.run:SpeechRatings"
    smoke: ClassVar[Mapping[str, Any]] = {"stimuli": 2, "rewards": ("acoustic_proxy",)}

    seeds: tuple[int, ...] = (0,)
    data: Path | None = None
    """Folder of the ratings; None takes ``speech_mushra`` of $RLHF_TEST_DATA."""
    rewards: tuple[str, ...] = ("acoustic_proxy", "duration", "distillmos", "speech")
    """``speech`` has DNSMOS and the word errors among its parts."""
    stimuli: int = Field(default=8, ge=2)
