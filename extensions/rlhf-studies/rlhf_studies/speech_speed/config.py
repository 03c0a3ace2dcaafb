from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from rlhf_study.config import StudyConfig


class SpeechSpeedConfig(StudyConfig):
    """How fast are the acoustic features and the local speech rewards? Features: processor milliseconds per second of
    16 kHz audio, beside a plain librosa implementation of the seven that the acoustic proxy was proposed with (``pyin``
    for the pitch), both sides in turns in one process, after a warm-up. Rewards: processor seconds per clip.
    DistillMOS is left out where it is not installed.
    """

    name: str = "speech_speed"
    component: ClassVar[str] = "rlhf_studies.speech_speed.run:SpeechSpeed"
    smoke: ClassVar[Mapping[str, Any]] = {"clips": 2, "rewards": ("duration",)}

    seeds: tuple[int, ...] = (0,)
    data: Path | None = None
    """Folder with ``stim_*/*.flac``; None takes ``speech_mushra`` of $RLHF_TEST_DATA."""
    clips: int = Field(default=16, ge=1)
    rewards: tuple[str, ...] = ("acoustic_proxy", "duration", "dnsmos", "distillmos", "wer")
