"""One small chart per metric, in the groups of a reader of training curves; bokeh's JavaScript draws them when seen."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlhf_plugin_report.read import RunView
from rlhf_plugin_report.rows import is_number
from rlhf_plugin_report.stored import mapping
from rlhf_plugin_report.words import Group, group_of, order_of, words_of

SPREAD = Group(0, "Scores and lengths", True)
"""The group of what is drawn from completions instead of metrics; it stands after the first."""
BOKEH = ("bokeh.min.js", "bokeh-api.min.js")
POINTS = 1000
"""Most points of a curve; a longer one is thinned evenly."""


@dataclass(frozen=True)
class Chart:
    metric: str
    place: str
    """Identifier of the element that it is drawn into."""
    summary: str
    """First and last value of every run, for those who do not see the curve."""
    item: Any
    """What the page's script draws, as JSON values: ``kind`` (lines, bands, scatter), labels and ``series``."""


@cache
def library() -> str:
    return "\n".join(bokeh_file(name).read_text(encoding="utf-8") for name in BOKEH)


def bokeh_file(name: str) -> Path:
    """One of :data:`BOKEH` in bokeh's wheel; bokeh itself is not imported."""
    spec = find_spec("bokeh")
    assert spec is not None, "the distribution depends on it"
    assert spec.origin is not None, "bokeh is a package with an __init__.py"
    return Path(spec.origin).parent / "server" / "static" / "js" / name


def draw(runs: Sequence[RunView]) -> list[tuple[Group, list[Chart]]]:
    """Charts of every metric that has two values or more in some run, group by group, and of the runs' completions."""
    series = {run.name: _series(run) for run in runs}
    metrics = sorted({m for of_run in series.values() for m, (_, y) in of_run.items() if len(y) > 1})
    limits = {m: sorted({at for run in runs for at in run.thresholds.get(m, ())}) for m in metrics}
    charts = [
        Chart(m, f"chart-{n}", _in_words(m, series) + _limits(limits[m]), _lines(m, series, limits[m]))
        for n, m in enumerate(metrics)
    ]
    grouped: dict[Group, list[Chart]] = defaultdict(list)
    for chart in sorted(charts, key=lambda chart: order_of(chart.metric)):
        grouped[group_of(chart.metric)].append(chart)
    drawn, spread = list(grouped.items()), list(_spread(runs))
    return [*drawn[:1], (SPREAD, spread), *drawn[1:]] if spread else drawn


def axes(run: RunView) -> dict[str, list[float]]:
    """What can stand below a run's curves: its steps, and the seconds and tokens of training up to each."""
    columns: dict[str, list[float]] = {"step": [], "seconds": [], "tokens": []}
    seconds = tokens = 0.0
    for row in run.steps:
        seconds += _finite(mapping(row.get("time")).get("step"))
        tokens += _finite(row.get("tokens_generated", row.get("train/tokens")))
        for name, value in (("step", row["step"]), ("seconds", round(seconds, 2)), ("tokens", tokens)):
            columns[name].append(value)
    return columns


def _series(run: RunView) -> dict[str, tuple[list[int], list[float]]]:
    series: dict[str, tuple[list[int], list[float]]] = {}
    for row in run.steps:
        for key, value in _numbers(row):
            steps, values = series.setdefault(key, ([], []))
            steps.append(int(row["step"]))
            values.append(value)
    return series


def _numbers(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Metrics of a row; those of ``time`` under ``time/``."""
    for key, value in row.items():
        if key == "time" and isinstance(value, Mapping):
            yield from ((f"time/{k}", v) for k, v in _numbers(value))
        elif key != "step" and isinstance(value, int | float) and not isinstance(value, bool):
            yield key, float(value) if abs(value) < 1e300 else math.nan


def _finite(value: Any) -> float:
    return float(value) if is_number(value) and math.isfinite(value) else 0.0


def _lines(metric: str, series: Mapping[str, Any], limits: Sequence[float]) -> dict[str, Any]:
    lines = [
        {"name": name, "n": n, "x": _thinned(of_run[metric][0]), "y": [_short(y) for y in _thinned(of_run[metric][1])]}
        for n, (name, of_run) in enumerate(series.items())
        if metric in of_run
    ]
    title = words_of(metric) + _limits(limits)
    return {"kind": "lines", "title": title, "x": "step", "y": metric, "limits": limits, "series": lines}


def _limits(limits: Sequence[float]) -> str:
    """Example: ``; a monitor speaks at 0.25, 0.5``"""
    return f"; a monitor speaks at {', '.join(f'{at:g}' for at in limits)}" if limits else ""


def _spread(runs: Sequence[RunView]) -> Iterator[Chart]:
    for n, run in enumerate(runs):
        of = f" ({run.name})" if len(runs) > 1 else ""
        if len(run.distribution) > 1:
            title = f"{run.quantity} by step: median, quartiles, 10 % to 90 %{of}"
            ends = [run.distribution[place] for place in (0, -1)]
            words = f"{run.name}: median {run.quantity} from {ends[0]['q50']:.4g} to {ends[1]['q50']:.4g}"
            rows = _thinned(run.distribution)
            columns = {key: [_short(row[key]) for row in rows] for key in rows[0]}
            item = {"kind": "bands", "title": title, "x": "step", "y": run.quantity, "series": [{"n": n, **columns}]}
            yield Chart(title, f"bands-{n}", words, item)
        if len(run.points) > 1:
            title = f"length against {run.quantity}, coloured by step{of}"
            x, y, step = zip(*run.points)
            words = f"{run.name}: {len(x)} completions; correlation of length and {run.quantity} {_correlation(x, y)}"
            points = {"n": n, "x": x, "y": [_short(v) for v in y], "step": step}
            item = {"kind": "scatter", "title": title, "x": "tokens", "y": run.quantity, "series": [points]}
            yield Chart(title, f"scatter-{n}", words, item)


def _correlation(x: Sequence[float], y: Sequence[float]) -> str:
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = math.sqrt(sum((a - mean_x) ** 2 for a in x) * sum((b - mean_y) ** 2 for b in y))
    return "none" if not spread else f"{sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / spread:.2f}"


def _thinned(values: Sequence[Any]) -> Sequence[Any]:
    """At most :data:`POINTS` of them, the first and the last included."""
    count = len(values)
    return values if count <= POINTS else [values[i * (count - 1) // (POINTS - 1)] for i in range(POINTS)]


def _short(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _in_words(metric: str, series: Mapping[str, Any]) -> str:
    ends = [(name, of_run[metric][1]) for name, of_run in series.items() if metric in of_run]
    return "; ".join(f"{name}: {metric} from {values[0]:.4g} to {values[-1]:.4g}" for name, values in ends)
