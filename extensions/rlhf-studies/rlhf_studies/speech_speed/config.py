from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from rlhf_study.config import StudyConfig


class SpeechSpeedConfig(StudyConfig):
    """How fast are the acoustic features and the local speech rewards? Processor milliseconds per second of 16 kHz
    audio beside plain librosa (``pyin`` for the pitch), in turns in one process; processor seconds per clip of rewards.
    DistillMOS is left out where it is not installed."""

    name: str = "speech_speed"
    component: ClassVar[str] = "rlhf_studies.speech_speed.run:SpeechSpeed"
    smoke: ClassVar[Mapping[str, Any]] = {"clips": 2, "rewards": ("duration",)}

    seeds: tuple[int, ...] = (0,)
    data: Path | None = None
    """Folder with ``stim_*/*.flac``; None takes ``speech_mushra`` of $RLHF_TEST_DATA."""
    clips: int = Field(default=16, ge=1)
    rewards: tuple[str, ...] = ("acoustic_proxy", "duration", "dnsmos", "distillmos", "wer")
