"""What an ablation is: the arms, the metric they are compared by, and what a document says of two arms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlhf_study.config import StudyConfig

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Claim:
    """What a document says, or asks, of two arms."""

    line: str = ""
    """Document and line. Example: ``000:696``"""
    says: str = ""
    """The finding in one sentence; a question where the document leaves the answer open."""
    arm: str = ""
    other: str = ""
    sign: Literal[1, 0, -1] = 0
    """1: ``arm`` has the higher value; -1: the lower; 0: an open question."""
    metric: str = ""
    """Metric whose last values are compared; the study's own by default."""


class AblationConfig(StudyConfig):
    """Arms that differ in one thing, trained with the same seeds; differences are paired by seed."""

    component: ClassVar[str] = "rlhf_study.ablation.run:Ablation"
    checks_runs: ClassVar[bool] = True
    keeps_models: ClassVar[bool] = False
    """Whether trained weights stay in the folders of the runs."""
    seeds: tuple[int, ...] = Field(default=(0, 1, 2, 3, 4), min_length=1)
    """Five: the interval of three seeds is twice as wide."""
    options: tuple[str, ...] = ()
    """Further words of `rlhf train`. Example: ``["--nproc", "4"]``"""
    arms: Mapping[str, Settings] = {}
    """What each arm changes."""
    metric: str = "eval/reward/mean"
    """Metric that is compared, by its last value."""
    also: tuple[str, ...] = ()
    """Further metrics of the table."""
    claims: tuple[Claim, ...] = ()

    def settings(self, arm: str, seed: int) -> tuple[Settings, ...]:
        """Layers of one run's configuration; later ones win."""
        return (self.arms[arm], {"seed": seed})
