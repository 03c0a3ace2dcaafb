from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlhf_study.config import StudyConfig


class CriticCeilingConfig(StudyConfig):
    """How much of the returns could PPO's critic explain? A fresh critic is fitted to fixed scores of the starting
    policy on two pocket tasks: ``arithmetic`` (1 for the right sum, else 0) and ``assistant`` (the gold score). Every
    prompt has six completions, so that the scores' variance splits into what prompts differ in, which is all that can
    be known before the first token, and luck. The critic learns whole returns (lambda 1, no clipping) of three quarters
    of the prompts; the variance that it explains is measured on the others.
    """

    name: str = "critic_ceiling"
    component: ClassVar[str] = "rlhf_studies.critic_ceiling.run:CriticCeiling"
    smoke: ClassVar[Mapping[str, Any]] = {"prompts": 8, "updates": 2}

    seeds: tuple[int, ...] = (0,)
    prompts: int = Field(default=160, ge=4)
    updates: int = Field(default=40, ge=1)
