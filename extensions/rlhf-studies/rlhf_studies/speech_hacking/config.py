from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlhf_study.config import StudyConfig


class SpeechHackingConfig(StudyConfig):
    """Reward hacking in sound: GRPO on pocket-voice by ``acoustic_proxy`` alone, and by the composite of `rlhf tts
    train` with the proxy as a third part. The monitor ``hacking`` compares with DistillMOS, which nothing is trained
    on, and only warns. Steps also record DNSMOS P.808 and the phone error rate. At the end all voices say the
    validation sentences twice each; a scorer has fallen where the 95 % interval of its difference, over sentences, is
    below zero."""

    name: str = "speech_hacking"
    component: ClassVar[str] = "rlhf_studies.speech_hacking.run:SpeechHacking"
    smoke: ClassVar[Mapping[str, Any]] = {"steps": 1, "clips": 8, "sentences": 2, "second": "duration"}

    seeds: tuple[int, ...] = (0,)
    steps: int = Field(default=48, ge=1)
    clips: int = Field(default=64, ge=8)
    """In a step."""
    sentences: int = Field(default=20, ge=2)
    """Of the validation, at the end."""
    second: str = "distillmos"
    """The second reward of the monitor."""
    workers: int = Field(default=1, ge=1)
    """Processes that score."""
    train: Mapping[str, Any] = {}
    """Further settings of both trainings."""
