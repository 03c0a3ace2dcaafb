"""A sweep as it is written: a base configuration, what varies, seeds, and the metric that is compared."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.config import ConfigError, merge_settings
from rlhf_plugin_recipes.files import flat, read_mapping, refuse_unknown

KEYS = ("name", "about", "base", "grid", "random", "points", "seeds", "metric", "also", "goal")
DRAWS = ("uniform", "log_uniform", "integer", "choice")


@dataclass(frozen=True)
class Point:
    """Settings that one line of the table stands for."""

    label: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Sweep:
    name: str
    file: Path
    about: str
    base: Mapping[str, Any]
    points: tuple[Point, ...]
    seeds: tuple[int, ...]
    metric: str
    also: tuple[str, ...]
    goal: str
    """``max`` or ``min``."""

    def settings(self, point: Point, seed: int) -> dict[str, Any]:
        """Keys of a `train` stage for one run."""
        settings: dict[str, Any] = dict(self.base)
        for key, value in point.settings.items():
            settings = merge_settings(settings, _nested(key, value))
        return {**settings, "seed": seed}


def read_sweep(file: Path, settings: Iterable[str] = (), seeds: tuple[int, ...] = ()) -> Sweep:
    """Read a sweep; whether its settings exist is checked when its runs are planned."""
    data = read_mapping(file, settings)
    refuse_unknown(str(file), data, KEYS)
    base = data.get("base")
    if not isinstance(base, dict) or not base:
        raise ConfigError("a sweep needs a base", where=str(file), fix="base: {algo: grpo, reward: verifier}")
    metric, also = data.get("metric"), data.get("also") or []
    if not isinstance(metric, str) or not isinstance(also, list):
        raise ConfigError("a sweep needs a metric", where=str(file), fix="metric: eval/reward/mean, also: [entropy]")
    goal = data.get("goal", "max")
    if goal not in ("max", "min"):
        raise ConfigError(f"goal is {goal!r}", where=str(file), fix="max or min")
    return Sweep(
        str(data.get("name") or file.stem),
        file,
        str(data.get("about", "")).strip(),
        base,
        tuple(_points(data, str(file))),
        seeds or _seeds(data.get("seeds", [0]), str(file)),
        metric,
        tuple(str(one) for one in also),
        goal,
    )


def _points(data: Mapping[str, Any], where: str) -> list[Point]:
    axes = [axis for axis in (_named(data, where), *_grid(data, where), _drawn(data, where)) if axis]
    if not axes:
        raise ConfigError("nothing varies", where=where, fix="grid: {trainer.optimizer.learning_rate: [1e-5, 1e-4]}")
    _check_keys(data, axes, where)
    points: list[Point] = []
    for chosen in itertools.product(*axes):
        settings = {key: value for point in chosen for key, value in point.settings.items()}
        points.append(Point(", ".join(point.label for point in chosen), settings))
    labels = [point.label for point in points]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise ConfigError(f"'{twice}' is given twice among the points", where=where, fix="leave one out")
    return points


def _check_keys(data: Mapping[str, Any], axes: list[list[Point]], where: str) -> None:
    """Refuse a setting that varies, but of which something else decides, so that the table would name another."""
    keys = [set[str]().union(*(_decided(point.settings) for point in axis)) for axis in axes]
    if "seed" in data["base"] or any("seed" in axis for axis in keys):
        raise ConfigError("seed is not a setting that varies", where=where, fix="seeds: [0, 1, 2]")
    overriding = data["base"].get("set")
    decided = _decided(overriding) if isinstance(overriding, Mapping) else set[str]()
    for key in sorted({"seed"}.union(*keys) & decided):
        fix = "leave it out of base.set" + (", and say seeds: [0, 1, 2]" if key == "seed" else "")
        raise ConfigError(f"base.set decides {key} of every run", where=where, fix=fix)
    for one, other in itertools.combinations(keys, 2):
        for key in sorted(one & other):
            raise ConfigError(f"{key} varies twice", where=where, fix="in one of points, grid and random")


def _decided(settings: Mapping[str, Any]) -> set[str]:
    """Dotted keys that settings decide; `loss: dapo` is `loss.name`, and says nothing of `loss.clip_range`."""
    names = {key for key, value in settings.items() if isinstance(value, str) and "." not in key}
    return {f"{key}.name" if key in names else key for key in flat(settings)}


def _named(data: Mapping[str, Any], where: str) -> list[Point]:
    points = data.get("points") or {}
    if not isinstance(points, dict) or not all(isinstance(one, dict) for one in points.values()):
        raise ConfigError("points must map names to settings", where=where, fix="points: {slow: {trainer.steps: 20}}")
    return [Point(str(name), one) for name, one in points.items()]


def _grid(data: Mapping[str, Any], where: str) -> Iterator[list[Point]]:
    grid = data.get("grid") or {}
    if not isinstance(grid, dict):
        raise ConfigError("grid must map settings to lists", where=where, fix="grid: {loss.clip_range: [0.1, 0.2]}")
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"grid: {key} is not a list of values", where=where, fix=f"{key}: [1, 2]")
        yield [Point(f"{_short(key)}={_text(value)}", {key: value}) for value in values]


def _drawn(data: Mapping[str, Any], where: str) -> list[Point]:
    section = data.get("random")
    if section is None:
        return []
    if not isinstance(section, dict):
        raise ConfigError("random must be a mapping", where=where, fix="random: {count: 8, settings: {...}}")
    refuse_unknown(f"{where}, random", section, ("count", "seed", "settings"))
    count, draws = section.get("count"), section.get("settings")
    if not isinstance(count, int) or count < 1 or not isinstance(draws, dict) or not draws:
        raise ConfigError("random needs a count and settings", where=where, fix="random: {count: 8, settings: {...}}")
    generator = random.Random(int(section.get("seed", 0)))
    points: list[Point] = []
    for _ in range(count):
        settings = {key: _draw(generator, key, how, where) for key, how in draws.items()}
        label = ", ".join(f"{_short(key)}={_text(value)}" for key, value in settings.items())
        points.append(Point(label, settings))
    return points


def _draw(generator: random.Random, key: str, how: Any, where: str) -> Any:
    fix = f"{key}: {{log_uniform: [1e-6, 1e-3]}}; one of {', '.join(DRAWS)}"
    if not isinstance(how, dict) or len(how) != 1 or next(iter(how)) not in DRAWS:
        raise ConfigError(f"random: {key} says no way to draw it", where=where, fix=fix)
    name, values = next(iter(how.items()))
    if not isinstance(values, list) or not values:
        raise ConfigError(f"random: {key}: {name} needs a list", where=where, fix=fix)
    if name == "choice":
        return generator.choice(values)
    good = len(values) == 2 and all(isinstance(v, int | float) for v in values) and values[0] <= values[1]
    if not good or (name == "log_uniform" and values[0] <= 0):
        raise ConfigError(f"random: {key}: {name} needs two bounds, not {values}", where=where, fix=fix)
    low, high = values
    if name == "integer":
        return generator.randint(int(low), int(high))
    value = generator.uniform(low, high) if name == "uniform" else math.exp(generator.uniform(*map(math.log, values)))
    return float(f"{value:.4g}")


def _seeds(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(type(one) is int and one >= 0 for one in value):
        raise ConfigError("seeds must be a list of whole numbers", where=where, fix="seeds: [0, 1, 2]")
    return tuple(dict.fromkeys(value))


def _nested(key: str, value: Any) -> dict[str, Any]:
    first, *rest = key.split(".")
    for part in reversed(rest):
        value = {part: value}
    return {first: value}


def _short(key: str) -> str:
    return key.split(".")[-1]


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
