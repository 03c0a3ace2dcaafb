"""Ablations of the pocket world, minutes on a CPU, whose arms can be trained in a real world too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from rlhf_core.config import ConfigError
from rlhf_studies.common import smoke
from rlhf_study.ablation.config import AblationConfig, Settings


class WorldAblation(AblationConfig):
    """An ablation in one of two worlds."""

    smoke: ClassVar[Mapping[str, Any]] = {"steps": 1, "train": smoke.ONLINE}

    worlds: ClassVar[Mapping[str, Settings]] = {}
    """Settings of every run: of ``pocket`` and of ``real``, a model for a GPU."""
    shared: ClassVar[Settings] = {}
    """What this study changes in every run."""
    real_arms: ClassVar[Mapping[str, Settings]] = {}
    """``arms`` of ``world=real``, where they change something else there."""
    length: ClassVar[str] = "steps"
    """The trainer's setting that `steps` gives; `max_steps` of trainers that learn from rows."""
    before: ClassVar[Mapping[str, Settings]] = {}
    """Runs before the arms, trained in ``worlds_before``; ``@NAME`` in a setting is the model that one ends with."""
    worlds_before: ClassVar[Mapping[str, Settings]] = {}

    steps: int = Field(default=30, ge=1)
    world: Literal["pocket", "real"] = "pocket"
    train: Mapping[str, Any] = {}
    """Further settings of every run."""
    train_before: Mapping[str, Any] = {}
    """Further settings of every run before."""

    @model_validator(mode="after")
    def _has_world(self) -> WorldAblation:
        if self.world not in self.worlds:
            raise ConfigError(f"{self.name} has no world '{self.world}'", fix=f"one of: {', '.join(self.worlds)}")
        return self

    def settings(self, arm: str, seed: int) -> tuple[Settings, ...]:
        change = {**self.arms, **(self.real_arms if self.world == "real" else {})}[arm]
        return (
            self.worlds[self.world],
            self.shared,
            change,
            {"seed": seed, "trainer": {self.length_of(arm): self.steps}},
            self.train,
        )

    def length_of(self, arm: str) -> str:
        """The trainer's setting that ``steps`` gives, of an arm."""
        return self.length

    def settings_before(self, seed: int) -> Mapping[str, tuple[Settings, ...]]:
        world = self.worlds_before.get(self.world, {})
        return {name: (world, own, {"seed": seed}, self.train_before) for name, own in self.before.items()}


def unnamed(worlds: Mapping[str, Settings]) -> dict[str, Settings]:
    """The worlds without their trainer's name, for arms that each name one: an arm's other name drops what is beside
    the first."""
    rest = {world: {key: one for key, one in of["trainer"].items() if key != "name"} for world, of in worlds.items()}
    return {world: {**of, "trainer": rest[world]} for world, of in worlds.items()}
