"""Curves by bokeh, one small chart per metric, in groups that a reader of training curves looks for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_plugin_report.read import RunView

GROUPS: tuple[tuple[str, str], ...] = (
    ("Reward", r"^(reward/(mean|std)|accuracy|margin.*|chosen_.*|rejected_.*)$"),
    ("Held out", r"^eval/"),
    ("Reward's parts", r"^reward/"),
    ("Loss and gradient", r"^(loss|grad_norm|critic_grad_norm|learning_rate|value_loss|explained_variance)$"),
    ("Distance from reference and sampler", r"^(kl|approx_kl|importance|clip|ratio|drift)"),
    ("Entropy and advantages", r"^(entropy|advantage)"),
    ("Lengths", r"^(completion_length|truncated|train/tokens|tokens_)"),
    ("Health and hacking", r"^(health|hacking|identical|repeat|commonest|constant_groups|unscored)"),
    ("Time in seconds", r"^(time/|seconds|tokens_per_second)"),
    ("Others", r""),
)
"""Title and the metrics under it; a metric stands in the first group that it fits."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
"""Okabe and Ito's, told apart by people who do not see all colours; the lines differ by dash as well."""
DASHES = ("solid", "dashed", "dotdash", "dotted")


@dataclass(frozen=True)
class Chart:
    """A metric's curve, and the same in words."""

    metric: str
    place: str
    """Identifier of the element that it is drawn into."""
    summary: str
    """First and last value of every run, for those who do not see the curve."""
    item: Any
    """What bokeh draws, as JSON values."""


def library() -> str:
    """bokeh's JavaScript, from its wheel."""
    import bokeh

    return (Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js").read_text(encoding="utf-8")


def draw(runs: Sequence[RunView]) -> list[tuple[str, list[Chart]]]:
    """Charts of every metric that has two values or more in some run, group by group."""
    from bokeh.core.types import ID
    from bokeh.embed import json_item

    series = {run.name: _series(run) for run in runs}
    metrics = sorted({m for of_run in series.values() for m, (_, y) in of_run.items() if len(y) > 1})
    groups: dict[str, list[Chart]] = {title: [] for title, _ in GROUPS}
    for n, metric in enumerate(metrics):
        title = next(title for title, pattern in GROUPS if re.search(pattern, metric))
        item = json_item(_figure(metric, series), ID(f"chart-{n}"))
        groups[title].append(Chart(metric, f"chart-{n}", _in_words(metric, series), item))
    return [(title, charts) for title, charts in groups.items() if charts]


def _series(run: RunView) -> dict[str, tuple[list[int], list[float]]]:
    series: dict[str, tuple[list[int], list[float]]] = {}
    for row in run.steps:
        for key, value in row.items():
            if key != "step" and isinstance(value, int | float) and not isinstance(value, bool):
                steps, values = series.setdefault(key, ([], []))
                steps.append(int(row["step"]))
                values.append(float(value))
    return series


def _figure(metric: str, series: dict[str, Any]) -> Any:
    from bokeh.models import HoverTool
    from bokeh.plotting import figure

    plot: Any = figure(width=330, height=190, title=metric, tools="pan,xwheel_zoom,reset", toolbar_location=None)
    for n, (name, of_run) in enumerate(series.items()):
        if metric in of_run:
            steps, values = of_run[metric]
            style: dict[str, Any] = {"color": COLOURS[n % len(COLOURS)], "name": name}
            plot.line(steps, values, line_width=2, line_dash=DASHES[n // len(COLOURS) % len(DASHES)], **style)
            plot.scatter(steps, values, size=4 if len(steps) < 100 else 2, **style)
    plot.add_tools(HoverTool(tooltips=[("run", "$name"), ("step", "@x"), (metric, "@y{0.0000}")]))
    plot.xaxis.axis_label = "step"
    plot.background_fill_alpha = plot.border_fill_alpha = 0
    plot.outline_line_color = None
    for part in (plot.xaxis, plot.yaxis):
        part.axis_label_text_color = part.major_label_text_color = "#7a7f87"
        part.axis_line_color = part.major_tick_line_color = part.minor_tick_line_color = "#7a7f87"
    plot.title.text_color = "#7a7f87"
    plot.grid.grid_line_alpha = 0.25
    return plot


def _in_words(metric: str, series: dict[str, Any]) -> str:
    ends = [(name, of_run[metric][1]) for name, of_run in series.items() if metric in of_run]
    return "; ".join(f"{name}: {metric} from {values[0]:.4g} to {values[-1]:.4g}" for name, values in ends)
