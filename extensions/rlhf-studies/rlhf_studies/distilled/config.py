from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlhf_study.config import StudyConfig


class DistilledConfig(StudyConfig):
    """Is a teacher worth more than demonstrations or a reward? From the pocket model distillation, SFT and GRPO learn
    from equally many tokens; the teacher is the same model after longer supervised training."""

    name: str = "distilled"
    component: ClassVar[str] = "rlhf_studies.distilled.run:Distilled"
    smoke: ClassVar[Mapping[str, Any]] = {
        "tokens": 300,
        "teacher_steps": 2,
        "evaluated": 8,
        "methods": ("distill", "sft"),
        "train": {"trainer": {"sampling": {"max_tokens": 6}}},
    }
    methods: tuple[Literal["distill", "distill_offline", "sft", "grpo"], ...] = (
        "distill",
        "distill_offline",
        "sft",
        "grpo",
    )
    tokens: int = Field(20_000, ge=1)
    """Completion tokens that each method may learn from."""
    teacher_steps: int = Field(100, ge=1)
    """Updates of the teacher, of 64 demonstrations each."""
    evaluated: int = Field(100, ge=2)
    """Held-out prompts, one completion each."""
    train: Mapping[str, Any] = {}
    """Further settings of every method's run."""
