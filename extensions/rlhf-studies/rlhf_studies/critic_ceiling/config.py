from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlhf_study.config import StudyConfig


class CriticCeilingConfig(StudyConfig):
    """How much of the returns could PPO's critic explain? A fresh critic is fitted to fixed scores of the starting
    policy on ``arithmetic`` and ``assistant``, six completions a prompt, so that the variance splits into what prompts
    differ in and luck. It learns three quarters of the prompts (lambda 1, no clipping) and is measured on the
    others."""

    name: str = "critic_ceiling"
    component: ClassVar[str] = "rlhf_studies.critic_ceiling.run:CriticCeiling"
    smoke: ClassVar[Mapping[str, Any]] = {"prompts": 8, "updates": 2}

    seeds: tuple[int, ...] = (0,)
    prompts: int = Field(default=160, ge=4)
    updates: int = Field(default=40, ge=1)
