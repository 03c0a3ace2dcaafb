from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlhf_study.config import StudyConfig


class PrmVsOrmConfig(StudyConfig):
    """Right answers by wrong steps: does a process reward model see them, and does an outcome model? In the world of
    ``chain_steps`` both learn the same solutions with the same transformer and updates. Held-out questions are solved
    rightly, by a carried error, by a slip, and by two errors that cancel."""

    name: str = "prm_vs_orm"
    component: ClassVar[str] = "rlhf_studies.prm_vs_orm.run:PrmVsOrm"
    smoke: ClassVar[Mapping[str, Any]] = {"updates": 3, "chains": 30}

    mixes: tuple[Literal["all kinds", "wrong answers only"], ...] = ("all kinds",)
    """What is learned from: right solutions, and wrong ones of all kinds or with wrong answers only."""
    updates: int = Field(default=1500, ge=1)
    chains: int = Field(default=1000, ge=10)
    """Questions."""
