from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlhf_studies.common import smoke
from rlhf_study.config import StudyConfig


class CompositeWeightsConfig(StudyConfig):
    """Which weights should a composite reward have, and do scored responses tell before any training? A Bradley-Terry
    model and rules (length, hollow affirmations) score answers of the untrained policy, ``rlhf reward ablate`` weighs
    them, then GRPO trains with some weightings; the held-out gold score says what they were worth."""

    name: str = "composite_weights"
    component: ClassVar[str] = "rlhf_studies.composite_weights.run:CompositeWeights"
    smoke: ClassVar[Mapping[str, Any]] = {
        "steps": 1,
        "prompts": 4,
        "pairs": 64,
        "trained": (0.7,),
        "train": smoke.ONLINE,
    }

    steps: int = Field(default=14, ge=0)
    """Of GRPO with each weighting; 0 trains none."""
    trunk: Literal["full", "frozen"] = "frozen"
    """``frozen`` trains a linear head only; ``full`` a whole reward model, by ``rlhf train``."""
    pairs: int = Field(default=1024, ge=2)
    """From which the linear head learns."""
    prompts: int = Field(default=60, ge=1)
    """Unseen prompts, with ``answers`` to each."""
    answers: int = Field(default=8, ge=2)
    trained: tuple[float, ...] = (1.0, 0.7, 0.4, 0.0)
    """Weights of the reward model with which a policy is trained; the rules get the rest."""
    train: Mapping[str, Any] = {}
    """Further settings of the policies' training."""
