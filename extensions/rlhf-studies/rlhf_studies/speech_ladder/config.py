from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from rlhf_study.config import StudyConfig


class SpeechLadderConfig(StudyConfig):
    """Which damage does each speech reward hear? Recorded sentences are damaged in eleven ways, from little to much; a
    rung is heard where three quarters of the sentences, and their mean, score lower than on the rung before. Beside
    them stand sounds that are no speech, and the processor time of each reward. Words and durations are compared
    with what the recogniser hears in the recording. DistillMOS is left out where it is not installed."""

    name: str = "speech_ladder"
    component: ClassVar[str] = "rlhf_studies.speech_ladder.run:SpeechLadder"
    smoke: ClassVar[Mapping[str, Any]] = {"sentences": 1, "rewards": ("acoustic_proxy",)}

    seeds: tuple[int, ...] = (0,)
    data: Path | None = None
    """Folder with ``stim_*/ref.flac``; None takes ``speech_mushra`` of $RLHF_TEST_DATA."""
    rewards: tuple[str, ...] = ("acoustic_proxy", "duration", "distillmos", "speech")
    """``speech`` has DNSMOS and the word errors among its parts."""
    sentences: int = Field(default=3, ge=1)
