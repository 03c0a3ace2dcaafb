"""Metrics of runs against steps and seconds, with intervals over seeds.

Suffixes: ``_T`` points of a curve, ``_S`` seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_core.data import read_jsonl
from rlhf_eval.statistics import t_quantile

GRID = 40
"""Points of a curve against seconds."""


@dataclass(frozen=True)
class Curve:
    """One metric of one run."""

    steps_T: tuple[int, ...]
    seconds_T: tuple[float, ...]
    """Time of the steps so far; evaluations are not counted, for how many there are is not the run's merit."""
    values_T: tuple[float, ...]


@dataclass(frozen=True)
class Interval:
    """Mean over seeds and Student's 95 % interval of it; no bounds from one seed."""

    mean: float
    low: float | None
    high: float | None
    count: int

    @property
    def text(self) -> str:
        """Example: ``0.412 +- 0.031``"""
        return f"{self.mean:.4g}" if self.high is None else f"{self.mean:.4g} +- {self.high - self.mean:.2g}"


def read_curves(folder: Path, metrics: Sequence[str]) -> dict[str, Curve]:
    rows: dict[str, list[tuple[int, float, float]]] = {name: [] for name in metrics}
    seconds = 0.0
    for row in read_jsonl(folder / "metrics.jsonl"):
        phases: dict[str, float] = row.get("time") or {}
        seconds += float(phases.get("step", sum(phases.values())))  # trainers that learn from rows time phases alone
        for name in metrics:
            if isinstance(value := row.get(name), int | float) and not isinstance(value, bool):
                rows[name].append((int(row["step"]), seconds, float(value)))
    curves: dict[str, Curve] = {}
    for name, points in rows.items():
        if points:
            steps, times, values = zip(*points)
            curves[name] = Curve(tuple(steps), tuple(times), tuple(values))
    return curves


def metric_names(folder: Path) -> list[str]:
    return sorted({key for row in read_jsonl(folder / "metrics.jsonl") for key in row} - {"step", "time"})


def interval(values_S: Sequence[float]) -> Interval:
    count = len(values_S)
    mean = sum(values_S) / count
    if count < 2 or not all(map(math.isfinite, values_S)):
        return Interval(mean, None, None, count)
    spread = math.sqrt(sum((v - mean) ** 2 for v in values_S) / (count - 1) / count)
    half = t_quantile(count - 1) * spread
    return Interval(mean, mean - half, mean + half, count)


def over_steps(curves_S: Sequence[Curve]) -> tuple[list[float], list[Interval]]:
    tables = [dict(zip(curve.steps_T, curve.values_T)) for curve in curves_S]
    steps = sorted(set.intersection(*(set(table) for table in tables)))
    return [float(step) for step in steps], [interval([table[step] for table in tables]) for step in steps]


def over_seconds(curves_S: Sequence[Curve]) -> tuple[list[float], list[Interval]]:
    """Mean curve over the time that all seeds have run, linear between their points."""
    import numpy as np

    end = min(curve.seconds_T[-1] for curve in curves_S)
    seconds = np.linspace(0.0, end, GRID) if end > 0 else np.zeros(1)
    values = [np.interp(seconds, curve.seconds_T, curve.values_T) for curve in curves_S]
    return seconds.tolist(), [interval([float(v[i]) for v in values]) for i in range(len(seconds))]
