from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from rlhf_studies.common import smoke
from rlhf_study.config import StudyConfig


class MonitorLeadTimeConfig(StudyConfig):
    """How early does the reward-hacking monitor speak, and how often without cause? It is replayed over finished runs
    of the pocket world with several second rewards. The rollouts' gold score, which it sees only as "spot checks", says
    which runs were hacked: where the mean over three steps ends 0.05 below its best."""

    name: str = "monitor_lead_time"
    component: ClassVar[str] = "rlhf_studies.monitor_lead_time.run:MonitorLeadTime"
    smoke: ClassVar[Mapping[str, Any]] = {"pairs": 32, "methods": (), "train": smoke.OFFLINE}
    after: ClassVar[tuple[str, ...]] = ("lambda_sweep", "pocket_methods")

    sweep: Path | None = None
    """Folder of ``lambda_sweep``; None takes the one beside this study's."""
    pocket_methods: Path | None = None
    """Folder of ``pocket_methods``; None takes the one beside this study's."""
    methods: tuple[str, ...] = ("ppo", "grpo")
    """Runs of ``pocket_methods`` to replay."""
    pairs: int = Field(default=2048, ge=2)
    """From which each second reward model learns."""
    train: Mapping[str, Any] = {}
    """Further settings of their training."""
