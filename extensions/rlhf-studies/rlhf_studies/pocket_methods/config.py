from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from rlhf_studies.common import smoke
from rlhf_study.config import StudyConfig


class PocketMethodsConfig(StudyConfig):
    """Which method makes the better assistant? From one supervised policy PPO, DPO, iterative DPO and GRPO train by
    their own recipes; an ensemble of reward models is the proxy that PPO, GRPO and iterative DPO are trained against.
    None sees the gold score."""

    name: str = "pocket_methods"
    component: ClassVar[str] = "rlhf_studies.pocket_methods.run:PocketMethods"
    smoke: ClassVar[Mapping[str, Any]] = {
        "methods": ("grpo",),
        "sft": {"max_steps": 2, "batch_size": 8, "micro_batch_size": 8, "sample_prompts": 8},
        "measure": {"sample_prompts": 8, "sampling": {"max_tokens": 6}},
        "train": {"trainer": {**smoke.ONLINE["trainer"], "steps": 3}},
        "reward": smoke.ENSEMBLE["reward"],
    }

    methods: tuple[Literal["ppo", "dpo", "iterative_dpo", "grpo"], ...] = ("ppo", "dpo", "iterative_dpo", "grpo")
    sft: Mapping[str, Any] = {}
    """Further settings of the supervised trainer."""
    measure: Mapping[str, Any] = {}
    """Further settings of the run that trains the reward models and learns nothing."""
    reward: Mapping[str, Any] = {}
    """Further settings of the reward models."""
    train: Mapping[str, Any] = {}
    """Further settings of every method's run."""
