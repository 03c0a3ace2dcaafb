"""An ablation as it is written in a YAML file: settings of every run, what varies, seeds, and what is compared."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlhf_core.config import Config, ConfigError, merge_settings, parse_settings, read_yaml
from rlhf_study.ablation.config import AblationConfig, Settings

Way = Literal["uniform", "log_uniform", "integer", "choice"]
Axis = Sequence[tuple[str, Settings]]
"""Labels, and the settings that each stands for; of several axes every combination is an arm."""


class Draws(Config):
    """Arms that are drawn with a seed: the same every time."""

    count: int = Field(ge=1)
    seed: int = 0
    settings: Mapping[str, Mapping[Way, tuple[Any, ...]]] = Field(min_length=1)


class FileAblation(AblationConfig):
    """Arms of a file."""

    keeps_models: ClassVar[bool] = True
    base: Mapping[str, Any] = Field(min_length=1)
    """Settings of every run, as `rlhf train --config` reads them."""
    grid: Mapping[str, tuple[Any, ...]] = {}
    """Setting -> its values."""
    random: Draws | None = None
    name: str

    def settings(self, arm: str, seed: int) -> tuple[Settings, ...]:
        return (self.base, *super().settings(arm, seed))


def read_ablation(file: Path, settings: Iterable[str] = ()) -> FileAblation:
    """Read a file; whether the settings of its arms exist is another question (`check_arms`)."""
    data = merge_settings({"name": file.stem, **read_yaml(file)}, parse_settings(settings))
    config = FileAblation.from_settings(data, str(file))
    arms = combined(config, str(file))
    for claim in config.claims:
        if unknown := set(claim.terms) - set(arms):
            raise ConfigError(
                f"claims: there is no arm '{min(unknown)}'", where=str(file), fix=f"one of: {'; '.join(arms)}"
            )
    return config.model_copy(update={"arms": arms, "grid": {}, "random": None})


def combined(config: FileAblation, where: str) -> dict[str, Settings]:
    axes: list[Axis] = [list(config.arms.items()), *grid_axes(config.grid), drawn_axis(config.random, where)]
    axes = [axis for axis in axes if axis]
    if not axes:
        raise ConfigError("nothing varies", where=where, fix="grid: {trainer.optimizer.learning_rate: [1e-5, 1e-4]}")
    refuse_conflicts(config.base, axes, where)
    arms: dict[str, Settings] = {}
    for chosen in itertools.product(*axes):
        label = ", ".join(label for label, _ in chosen)
        if label in arms:
            raise ConfigError(f"'{label}' is given twice among the arms", where=where, fix="leave one out")
        changes = (nested(key, value) for _, settings in chosen for key, value in settings.items())
        arms[label] = reduce(merge_settings, changes, {})
    return arms


def refuse_conflicts(base: Settings, axes: Sequence[Axis], where: str) -> None:
    """Refuse a setting of which two axes decide, so that the table would name another."""
    keys = [{key for _, settings in axis for key in decided(settings)} for axis in axes]
    if "seed" in base or any("seed" in axis for axis in keys):
        raise ConfigError("seed is not a setting that varies", where=where, fix="seeds: [0, 1, 2]")
    for one, other in itertools.combinations(keys, 2):
        for key in sorted(one & other):
            raise ConfigError(f"{key} varies twice", where=where, fix="in one of arms, grid and random")


def decided(value: Any, key: str = "") -> list[str]:
    """Dotted keys that settings decide; `loss: dapo` is `loss.name`, and says nothing of `loss.clip_range`."""
    if isinstance(value, Mapping) and value:
        return [one for name, inner in value.items() for one in decided(inner, f"{key}.{name}" if key else str(name))]
    return [f"{key}.name" if isinstance(value, str) and "." not in key else key]


def grid_axes(grid: Mapping[str, Sequence[Any]]) -> Iterator[Axis]:
    for key, values in grid.items():
        yield [(f"{short(key)}={text(value)}", {key: value}) for value in values]


def drawn_axis(draws: Draws | None, where: str) -> Axis:
    if draws is None:
        return []
    generator = random.Random(draws.seed)
    points = [{k: draw(generator, k, how, where) for k, how in draws.settings.items()} for _ in range(draws.count)]
    return [(", ".join(f"{short(key)}={text(value)}" for key, value in point.items()), point) for point in points]


def draw(generator: random.Random, key: str, how: Mapping[Way, Sequence[Any]], where: str) -> Any:
    fix = f"{key}: {{log_uniform: [1e-6, 1e-3]}}; one of uniform, log_uniform, integer, choice"
    if len(how) != 1 or not all(how.values()):
        raise ConfigError(f"random: {key} needs one way to draw it, and its values", where=where, fix=fix)
    ((name, values),) = how.items()
    if name == "choice":
        return generator.choice(values)
    good = len(values) == 2 and all(isinstance(v, int | float) for v in values) and values[0] <= values[1]
    if not good or (name == "log_uniform" and values[0] <= 0):
        raise ConfigError(f"random: {key}: {name} needs two bounds, not {list(values)}", where=where, fix=fix)
    low, high = values
    if name == "integer":
        return generator.randint(int(low), int(high))
    value = generator.uniform(low, high) if name == "uniform" else math.exp(generator.uniform(*map(math.log, values)))
    return float(f"{value:.4g}")


def nested(key: str, value: Any) -> dict[str, Any]:
    return {key.split(".")[0]: reduce(lambda inner, part: {part: inner}, reversed(key.split(".")[1:]), value)}


def short(key: str) -> str:
    return key.split(".")[-1]


def text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
