"""The simulation beside step times that others published (``published.toml``)."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from rlhf_core.models import ModelConfig
from rlhf_plugin_preflight.cost.hardware import HERE, Shape, gpu_of, shape_of
from rlhf_plugin_preflight.cost.rollout import Factors, Lengths
from rlhf_plugin_preflight.cost.step import Layout, Step, Work, simulate

FACTORS = Factors(**tomllib.loads((HERE / "factors.toml").read_text()))
PUBLISHED: Mapping[str, Any] = tomllib.loads((HERE / "published.toml").read_text())
MODELS: Mapping[str, Mapping[str, Any]] = PUBLISHED["models"]
"""Mixtures of experts that transformers' shapes here do not have."""
MFUS = (0.38, 0.42, 0.46)
COMPLETIONS = (8e-5, 10e-5, 12e-5)
HEADERS = ("system", "model", "GPUs", "published, s", "simulated, s", "ratio", "at half, twice the length")


@dataclass(frozen=True)
class Row:
    system: str
    model: str
    layout: Layout
    fitted: bool
    published: float
    """Seconds of a step."""
    step: Step
    around: tuple[float, float] | None
    """Ratios with half and twice the mean length, where the source does not say it."""

    @property
    def ratio(self) -> float:
        return self.step.seconds / self.published

    @property
    def is_dense(self) -> bool:
        return self.model not in MODELS

    def cells(self) -> list[str]:
        layout = self.layout
        gpus = f"{layout.train} + {layout.serve}, {layout.staleness} ahead" if layout.serve else f"{layout.train}"
        around = "" if self.around is None else f"{self.around[0]:.2f}, {self.around[1]:.2f}"
        ratio = f"{self.ratio:.2f}{' (fitted)' * self.fitted}"
        return [self.system, self.model, gpus, f"{self.published:g}", f"{self.step.seconds:.1f}", ratio, around]


@cache
def rows() -> Sequence[Row]:
    """Every published row, simulated."""
    return [_row(system, {**system, **row}) for system in _systems() for row in system["rows"]]


def fitted() -> Factors:
    """The factors with the least squared logarithm of the ratio over the rows that are fitted to."""
    marked = [{**system, **row} for system in _systems() for row in system["rows"] if row.get("fitted")]

    def error(factors: Factors) -> float:
        return sum(math.log(_simulated(row, factors).seconds / row["seconds"]) ** 2 for row in marked)

    return min((replace(FACTORS, mfu=m, completion_s=c) for m in MFUS for c in COMPLETIONS), key=error)


def _systems() -> list[Mapping[str, Any]]:
    return [system for name, system in PUBLISHED.items() if name != "models"]


def _row(system: Mapping[str, Any], row: Mapping[str, Any]) -> Row:
    around = None
    if "mean" in system:  # one for all rows: assumed
        half, twice = (_simulated({**row, "mean": k * row["mean"]}).seconds / row["seconds"] for k in (0.5, 2.0))
        around = (half, twice)
    step, fits = _simulated(row), bool(row.get("fitted"))
    return Row(system["name"], row["model"], _layout(row), fits, float(row["seconds"]), step, around)


def _layout(row: Mapping[str, Any]) -> Layout:
    return Layout(**{name: row[name] for name in ("train", "serve", "tensor", "together", "staleness") if name in row})


def _simulated(row: Mapping[str, Any], factors: Factors = FACTORS) -> Step:
    lengths = Lengths(row["mean"], row["limit"])
    work = Work(
        row["completions"], row["group"], row["prompt"], lengths, updates=row["updates"], forwards=row["forwards"]
    )
    return simulate(_shape(row["model"]), gpu_of(row["gpu"]), work, _layout(row), factors)


@cache
def _shape(name: str) -> Shape:
    return Shape(**MODELS[name]) if name in MODELS else shape_of(ModelConfig.model_validate({"path": name}))
