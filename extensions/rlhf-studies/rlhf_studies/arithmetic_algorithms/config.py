from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlhf_studies.common import smoke
from rlhf_study.config import StudyConfig

Algorithm = Literal["ppo", "grpo", "dr_grpo", "dapo", "gspo", "rloo", "cispo"]


class ArithmeticAlgorithmsConfig(StudyConfig):
    """Seven algorithms on ``pocket/arithmetic`` with the numeric verifier: equal task, batch, four updates per rollout
    batch, learning rate and steps; the rest is each algorithm's own recipe, but for what ``OWN`` changes."""

    name: str = "arithmetic_algorithms"
    component: ClassVar[str] = "rlhf_studies.arithmetic_algorithms.run:ArithmeticAlgorithms"
    smoke: ClassVar[Mapping[str, Any]] = {
        "steps": 1,
        "algorithms": ("rloo",),
        "train": {"trainer": {**smoke.ONLINE["trainer"], "train_batch_size": 4}},
    }

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    algorithms: tuple[Algorithm, ...] = ("ppo", "grpo", "dr_grpo", "dapo", "gspo", "rloo", "cispo")
    steps: int = Field(default=40, ge=1)
    train: Mapping[str, Any] = {}
    """Further settings of every run, for example ``{trainer: {group_size: 4}}``."""
