from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlhf_study.config import StudyConfig


class MonitorFalseAlarmsConfig(StudyConfig):
    """How often does the reward-hacking monitor alarm where nothing is hacked? GRPO on ``pocket/arithmetic`` with the
    numeric verifier, whose parts the second reward weighs otherwise; every alarm is a false one."""

    name: str = "monitor_false_alarms"
    component: ClassVar[str] = "rlhf_studies.monitor_false_alarms.run:MonitorFalseAlarms"
    smoke: ClassVar[Mapping[str, Any]] = {"steps": 3, "batch": 16}

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    steps: int = Field(default=16, ge=1)
    batch: int = Field(default=64, ge=8)
    """Completions a step."""
