"""Curves of arms: every metric against steps and against seconds, mean over seeds with its 95 % interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_study.ablation.curves import Curve, interval, over_seconds, over_steps

Curves = Mapping[str, Mapping[int, Mapping[str, Curve]]]
"""Arm -> seed -> metric -> curve."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""Okabe and Ito's, told apart by people who do not see all colours; the lines differ by dash as well."""
DASHES = ("-", "--", "-.", ":")


def draw(
    title: str, metrics: Sequence[str], curves: Curves, file: Path, frontier: tuple[str, str] | None = None
) -> None:
    shown = [name for name in metrics if any(name in run for of_seed in curves.values() for run in of_seed.values())]
    if not shown:
        return
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text
    from matplotlib import pyplot

    rows = len(shown) + (frontier is not None)
    figure, axes = pyplot.subplots(rows, 2, figsize=(11, 2.9 * rows), squeeze=False)
    for row, name in enumerate(shown):
        for axis, points, label in zip(axes[row], (over_steps, over_seconds), ("step", "seconds of training")):
            _panel(axis, name, curves, points)
            axis.set_xlabel(label)
            axis.set_ylabel(name)
    if frontier is not None:
        _frontier(axes[-1][0], frontier, curves)
        axes[-1][1].set_axis_off()
    lines, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="lower center", ncols=min(4, len(labels)), frameon=False)
    figure.suptitle(title)
    figure.tight_layout(rect=(0, 0.03 + 0.03 * -(-len(labels) // 4) / rows, 1, 1))
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


def _frontier(axis: Any, names: tuple[str, str], curves: Curves) -> None:
    """Last values of two metrics, each arm a point with both intervals over seeds."""
    for n, of_seed in enumerate(curves.values()):
        last = [[run[name].values_T[-1] for run in of_seed.values() if name in run] for name in names]
        if all(last):
            across, up = map(interval, last)
            errors = [0.0 if one.high is None else one.high - one.mean for one in (across, up)]
            style: dict[str, Any] = {"color": COLOURS[n % len(COLOURS)], "fmt": "o", "capsize": 3}
            axis.errorbar(across.mean, up.mean, xerr=errors[0], yerr=errors[1], **style)
    axis.set(xlabel=f"{names[0]}, last", ylabel=f"{names[1]}, last")
    axis.grid(alpha=0.25)


def _panel(axis: Any, name: str, curves: Curves, points: Any) -> None:
    for n, (label, of_seed) in enumerate(curves.items()):
        of_metric = [of_run[name] for of_run in of_seed.values() if name in of_run]
        if not of_metric:
            continue
        xs, intervals = points(of_metric)
        style = {"color": COLOURS[n % len(COLOURS)]}
        axis.plot(xs, [one.mean for one in intervals], DASHES[n // len(COLOURS) % len(DASHES)], label=label, **style)
        if all(one.low is not None for one in intervals):
            bounds = [one.low for one in intervals], [one.high for one in intervals]
            axis.fill_between(xs, *bounds, alpha=0.15, linewidth=0, **style)
    axis.grid(alpha=0.25)
