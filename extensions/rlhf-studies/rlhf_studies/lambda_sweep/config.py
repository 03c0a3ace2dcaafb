from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlhf_studies.common import smoke
from rlhf_study.config import StudyConfig


class LambdaSweepConfig(StudyConfig):
    """GRPO in the pocket world under ``mean - lambda * std`` of an ensemble's members, for several lambda, and under
    its first member alone; no KL penalty, past the point where it pays. A seed's ensemble is trained once."""

    name: str = "lambda_sweep"
    component: ClassVar[str] = "rlhf_studies.lambda_sweep.run:LambdaSweep"
    smoke: ClassVar[Mapping[str, Any]] = {
        "lambdas": (0.5,),
        "steps": 3,
        "train": smoke.ONLINE,
        "ensemble": smoke.ENSEMBLE,
    }

    lambdas: tuple[float, ...] = Field(default=(0.0, 0.5, 1.0), min_length=1)
    steps: int = Field(default=24, ge=1)
    train: Mapping[str, Any] = {}
    """Further settings of every run."""
    ensemble: Mapping[str, Any] = {}
    """Further settings of the runs under the ensemble."""
