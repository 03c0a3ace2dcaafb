from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlhf_studies.common import smoke
from rlhf_study.config import StudyConfig


class EnsembleVsSingleConfig(StudyConfig):
    """GRPO in the pocket world under an ensemble of reward models and under its first member alone, without a KL
    penalty and past the point where it pays. The gold score says who hacks what."""

    name: str = "ensemble_vs_single"
    component: ClassVar[str] = "rlhf_studies.ensemble_vs_single.run:EnsembleVsSingle"
    smoke: ClassVar[Mapping[str, Any]] = {"steps": 2, "train": smoke.ONLINE, "ensemble": smoke.ENSEMBLE}

    steps: int = Field(default=30, ge=1)
    train: Mapping[str, Any] = {}
    """Further settings of every run, for example ``{trainer: {group_size: 4}}``."""
    ensemble: Mapping[str, Any] = {}
    """Further settings of the run under the ensemble."""
