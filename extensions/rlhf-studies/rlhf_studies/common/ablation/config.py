"""What an ablation is: a run's settings, the arms that change them, and what a document says of two arms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlhf_studies.common import smoke
from rlhf_study.config import StudyConfig

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Claim:
    """What a document says, or asks, of two arms."""

    line: str
    """Document and line. Example: ``000:696``"""
    says: str
    """The finding in one sentence; a question where the document leaves the answer open."""
    arm: str
    other: str
    sign: Literal[1, 0, -1] = 0
    """1: ``arm`` has the higher value; -1: the lower; 0: an open question."""
    metric: str = ""
    """Metric whose last values are compared; the study's own by default."""


class AblationConfig(StudyConfig):
    """Arms that differ in one thing, trained with the same seeds; differences are paired by seed."""

    component: ClassVar[str] = "rlhf_studies.common.ablation.run:Ablation"
    smoke: ClassVar[Mapping[str, Any]] = {"steps": 1, "train": smoke.ONLINE}

    worlds: ClassVar[Mapping[str, Settings]] = {}
    """Settings of every run: of ``pocket``, minutes on a CPU, and of ``real``, a model for a GPU."""
    shared: ClassVar[Settings] = {}
    """What this study changes in every run."""
    arms: ClassVar[Mapping[str, Settings]] = {}
    """What each arm changes."""
    real_arms: ClassVar[Mapping[str, Settings]] = {}
    """The same for ``world=real``, of arms that change something else there."""
    length: ClassVar[str] = "steps"
    """The trainer's setting that `steps` gives; `max_steps` of trainers that learn from rows."""
    metric: ClassVar[str] = "eval/reward/mean"
    """Metric that is compared, by its last value."""
    also: ClassVar[tuple[str, ...]] = ()
    """Further metrics of the table."""
    claims: ClassVar[tuple[Claim, ...]] = ()

    steps: int = Field(default=30, ge=1)
    world: Literal["pocket", "real"] = "pocket"
    train: Mapping[str, Any] = {}
    """Further settings of every run."""

    def settings(self, arm: str, seed: int) -> tuple[Settings, ...]:
        """Layers of one run's configuration; later ones win."""
        change = {**self.arms, **(self.real_arms if self.world == "real" else {})}[arm]
        return (
            self.worlds[self.world],
            self.shared,
            change,
            {"seed": seed, "trainer": {self.length: self.steps}},
            self.train,
        )
