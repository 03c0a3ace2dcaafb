from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlhf_study.config import StudyConfig


class SpeechRewardPairsConfig(StudyConfig):
    """How many pairs does a reward model on acoustic features need? Accuracy by the number of clip-disjoint pairs, per
    engine and mixed: ``flite`` (four voices; left out where it is not installed) and ``pocket-voice`` (six
    descriptions) say the catalogue's thirty sentences; the higher automatic MOS is the better clip. The last test is
    what training asks for: two samples of one plain prompt, of sixty new sentences. Intervals draw sentences (95 %)."""

    name: str = "speech_reward_pairs"
    component: ClassVar[str] = "rlhf_studies.speech_reward_pairs.run:SpeechRewardPairs"
    smoke: ClassVar[Mapping[str, Any]] = {"label": "acoustic_proxy", "sizes": (4,), "test": 4, "batch": 20}

    seeds: tuple[int, ...] = (0,)
    label: str = "dnsmos"
    """Reward that says which clip is better."""
    sizes: tuple[int, ...] = (50, 150, 500, 1000)
    """Training pairs of an engine."""
    test: int = Field(default=200, ge=2)
    """Pairs of each test: the first, so that they do not depend on how many are trained on."""
    batch: int = Field(default=60, ge=2)
    """Clips that are made, measured and thrown away together."""
