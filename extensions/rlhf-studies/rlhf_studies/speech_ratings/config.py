from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from rlhf_study.config import StudyConfig


class SpeechRatingsConfig(StudyConfig):
    """Which local speech reward agrees with listeners? Rank correlation with MUSHRA scores, per stimulus and pooled: 8
    sentences, each as recorded and through 7 codecs, rated by 10 or 11 listeners. The hidden reference is found by
    nearly every listener, so the figures are given with and without it. Nothing is fitted to the ratings but the
    weights in ``weighting``, which are tested on stimuli that they were not fitted to (by the same codecs). Texts of
    the sentences are not published with the clips: ``wer`` compares with what the recogniser hears in the recording,
    which therefore has no value of its own. DistillMOS is left out where it is not installed.
    """

    name: str = "speech_ratings"
    component: ClassVar[str] = "rlhf_studies.speech_ratings.run:SpeechRatings"
    smoke: ClassVar[Mapping[str, Any]] = {"stimuli": 2, "rewards": ("acoustic_proxy",)}

    seeds: tuple[int, ...] = (0,)
    data: Path | None = None
    """Folder of the ratings; None takes ``speech_mushra`` of $RLHF_TEST_DATA."""
    rewards: tuple[str, ...] = ("acoustic_proxy", "duration", "dnsmos", "distillmos", "wer", "speech")
    stimuli: int = Field(default=8, ge=2)
