from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlhf_studies.common import smoke
from rlhf_study.config import StudyConfig


class RubricVsBradleyTerryConfig(StudyConfig):
    """Grades on a rubric or preferences between pairs: which reward model is right more often, and which is easier to
    fool? The same pocket answers are judged as pairs by the noisy annotator, and one by one by an erring judge on three
    criteria. Two models of the same trunk learn from 64 answers each; ``rlhf reward evaluate`` tests both, and GRPO
    trains with each."""

    name: str = "rubric_vs_bradley_terry"
    component: ClassVar[str] = "rlhf_studies.rubric_vs_bradley_terry.run:RubricVsBradleyTerry"
    smoke: ClassVar[Mapping[str, Any]] = {
        "steps": 1,
        "pairs": 32,
        "prompts": 4,
        "limit": 32,
        "train": smoke.ONLINE,
    }

    steps: int = Field(default=14, ge=0)
    """Of GRPO with each reward model; 0 trains none."""
    pairs: int = Field(default=2048, ge=2)
    prompts: int = Field(default=60, ge=1)
    """Unseen prompts, with ``answers`` of the untrained policy to each, by which the models are tested."""
    answers: int = Field(default=8, ge=2)
    limit: int | None = None
    """Only so many held-out pairs to test by."""
    train: Mapping[str, Any] = {}
    """Further settings of the policies' training."""
