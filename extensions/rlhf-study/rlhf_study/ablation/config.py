"""What an ablation is: the arms, the metric they are compared by, and what a document says of two arms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    weights: Mapping[str, float] = field(default_factory=dict)
    """Arm -> factor: a sum over arms in place of ``arm`` less ``other``; ``arm`` then says what it is."""

    @property
    def terms(self) -> Mapping[str, float]:
        """Arm -> factor of the sum that is compared with zero."""
        return self.weights or {self.arm: 1.0, self.other: -1.0}

    @property
    def text(self) -> str:
        return self.arm if self.weights else f"{self.arm} less {self.other}"


def slope(xs: Mapping[str, float]) -> dict[str, float]:
    """Weights of a claim that make the slope of the least-squares line through the arms at ``xs``."""
    mean = sum(xs.values()) / len(xs)
    squares = sum((x - mean) ** 2 for x in xs.values())
    return {arm: (x - mean) / squares for arm, x in xs.items()}


def interaction(arm: str, other: str, last: str, first: str) -> dict[str, float]:
    """Weights of a claim: by how much more ``arm`` gains from ``first`` to ``last`` than ``other``; arms are called
    ``ARM LAST``."""
    return {f"{arm} {last}": 1.0, f"{arm} {first}": -1.0, f"{other} {last}": -1.0, f"{other} {first}": 1.0}


class AblationConfig(StudyConfig):
    """Arms that differ in one thing, trained with the same seeds; differences are paired by seed."""

    component: ClassVar[str] = "rlhf_study.ablation.run:Ablation"
    checks_runs: ClassVar[bool] = True
    keeps_models: ClassVar[bool] = False
    """Whether trained weights stay in the folders of the runs."""
    frontier: ClassVar[tuple[str, str] | None] = None
    """Two metrics whose last values the picture sets against each other, across and up."""
    seeds: tuple[int, ...] = Field(default=(0, 1, 2, 3, 4), min_length=1)
    """Five: the interval of three seeds is twice as wide."""
    options: tuple[str, ...] = ()
    """Further words of `rlhf train`. Example: ``["--nproc", "4"]``"""
    arms: Mapping[str, Settings] = {}
    """What each arm changes."""
    metric: str = "eval/reward/mean"
    """Metric that is compared, by its last value; ``summary/a/b`` is a number of the run's summary, or the sum of
    several."""
    also: tuple[str, ...] = ()
    """Further metrics of the table."""
    claims: tuple[Claim, ...] = ()

    def settings(self, arm: str, seed: int) -> tuple[Settings, ...]:
        """Layers of one run's configuration; later ones win."""
        return (self.arms[arm], {"seed": seed})

    def settings_before(self, seed: int) -> Mapping[str, tuple[Settings, ...]]:
        """Runs that are made before the arms, in order. ``@NAME`` in a setting is the model that one ends with."""
        return {}
