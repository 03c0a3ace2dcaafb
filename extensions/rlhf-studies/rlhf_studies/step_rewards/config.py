from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlhf_studies.common import smoke
from rlhf_study.config import StudyConfig


class StepRewardsConfig(StudyConfig):
    """Credit for each step against credit for the whole: GRPO in the pocket world with a process reward model that
    calls hollow sentences wrong; one advantage per completion from the lowest step, or one per step. Gold counts hollow
    answers, right ones and words."""

    name: str = "step_rewards"
    component: ClassVar[str] = "rlhf_studies.step_rewards.run:StepRewards"
    smoke: ClassVar[Mapping[str, Any]] = {
        "steps": 1,
        "texts": 64,
        "arms": ("own",),
        "process_model": smoke.OFFLINE,
        "train": {"trainer": {**smoke.ONLINE["trainer"], "gold_samples": 8}},
    }

    steps: int = Field(default=8, ge=1)
    texts: int = Field(default=1500, ge=2)
    """From which the process model learns."""
    arms: tuple[Literal["lowest", "own", "sum", "min"], ...] = ("lowest", "own")
    """``lowest``: one advantage per completion from its lowest step. The others: a step's own reward, or that and the
    later ones', summed or their lowest."""
    process_model: Mapping[str, Any] = {}
    """Further settings of the process model's training."""
    train: Mapping[str, Any] = {}
    """Further settings of the policies' training."""
