"""What a sweep found: ``results.json``, ``results.md``, and the table."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from rlhf_core.cli import table
from rlhf_core.config import did_you_mean
from rlhf_core.data import write_json, write_text
from rlhf_plugin_recipes.sweep.curves import Curve, interval, metric_names, read_curves, seconds_of
from rlhf_plugin_recipes.sweep.read import Sweep
from rlhf_plugin_recipes.sweep.run import Result

GOOD = ("done", "cached")
Curves = Mapping[str, Mapping[int, Mapping[str, Curve]]]
"""Point -> seed -> metric -> curve, of finished runs."""


def curves_of(sweep: Sweep, results: Sequence[Result]) -> dict[str, dict[int, dict[str, Curve]]]:
    curves: dict[str, dict[int, dict[str, Curve]]] = {}
    for result in results:
        if result.status in GOOD:
            of_run = read_curves(result.run.folder, (sweep.metric, *sweep.also))
            curves.setdefault(result.run.point.label, {})[result.run.seed] = of_run
    return curves


def write_results(sweep: Sweep, results: Sequence[Result], curves: Curves, root: Path, command: str) -> dict[str, Any]:
    result = {
        "sweep": sweep.name,
        "command": command,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "metric": sweep.metric,
        "goal": sweep.goal,
        "base": dict(sweep.base),
        "points": [_point(sweep, p.label, results, curves.get(p.label, {})) for p in sweep.points],
        "runs": [_run(sweep, one, curves) for one in results],
        "best": best(sweep, curves),
    }
    write_json(root / "results.json", result)
    headers, rows = table_of(sweep, result)
    lines = [f"| {' | '.join(row)} |" for row in (headers, ["---"] * len(headers), *rows)]
    notes = [sweep.about, f"`{command}`", "\n".join(lines), _note(sweep, result).replace("\n", "\n\n")]
    write_text(root / "results.md", "\n\n".join(note for note in notes if note) + "\n")
    return result


def best(sweep: Sweep, curves: Curves) -> str | None:
    last = {
        label: [of_run[sweep.metric].values_T[-1] for of_run in of_seed.values() if sweep.metric in of_run]
        for label, of_seed in curves.items()
    }
    means = {label: mean for label, values in last.items() if values and math.isfinite(mean := interval(values).mean)}
    choose = max if sweep.goal == "max" else min
    return choose(means, key=lambda label: means[label]) if means else None


def table_of(sweep: Sweep, result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headers and rows: final values, each a mean with half of its 95 % interval."""
    headers = ["point", "seeds", f"{sweep.metric}, first", "last", "seconds", *sweep.also]
    rows: list[list[str]] = []
    for point in result["points"]:
        star = " *" if point["label"] == result["best"] else ""
        cells = [point["final"].get(name, {}).get("text", "") for name in sweep.also]
        first, last = (point[at].get(sweep.metric, {}).get("text", "none") for at in ("first", "final"))
        rows.append([point["label"] + star, point["seeds_text"], first, last, point["seconds_text"], *cells])
    return headers, rows


def print_results(sweep: Sweep, result: Mapping[str, Any], root: Path, plot: Path | None) -> None:
    click.echo("")
    table(*table_of(sweep, result))
    click.echo(f"\n{_note(sweep, result)}")
    click.echo(f"results: {root / 'results.json'}")
    if plot is not None:
        click.echo(f"plot: {plot}")


def _note(sweep: Sweep, result: Mapping[str, Any]) -> str:
    notes = [
        "Means over seeds with half of Student's 95 % interval; * is the best mean, which need not be a difference."
    ]
    failed = [run for run in result["runs"] if run["status"] not in GOOD]
    notes += [f"{run['point']}, seed {run['seed']}: {run['status']}: {run['error']}" for run in failed]
    good = [run for run in result["runs"] if run["status"] in GOOD]
    notes += [
        f"{run['point']}, seed {run['seed']}: ended early: {run['stopped']}; its last values are of then"
        for run in good
        if run["stopped"]
    ]
    for name in (sweep.metric, *sweep.also):
        without = [run for run in good if name not in run["final"]]
        if good and len(without) == len(good):
            metrics = metric_names(Path(good[0]["folder"]))
            notes.append(
                f"no run has the metric '{name}': {did_you_mean(name, metrics) or 'there are ' + ', '.join(metrics)}"
            )
        else:
            notes += [f"{run['point']}, seed {run['seed']}: has no '{name}', and is not in its mean" for run in without]
    return "\n".join(notes)


def _point(sweep: Sweep, label: str, results: Sequence[Result], of_seed: Mapping[int, Mapping[str, Curve]]) -> Any:
    runs = [result for result in results if result.run.point.label == label]
    seconds = [seconds_of(result.run.folder) for result in runs if result.status in GOOD]
    row: dict[str, Any] = {
        "label": label,
        "settings": dict(runs[0].run.point.settings) if runs else {},
        "seeds_text": f"{len(of_seed)} of {len(runs)}",
        "seconds_text": interval(seconds).text if seconds else "",
        "first": {},
        "final": {},
    }
    for name in (sweep.metric, *sweep.also):
        curves = [of_run[name] for of_run in of_seed.values() if name in of_run]
        for at, index in (("first", 0), ("final", -1)):
            if curves:
                mean = interval([curve.values_T[index] for curve in curves])
                row[at][name] = {"mean": mean.mean, "low": mean.low, "high": mean.high, "text": mean.text}
    return row


def _run(sweep: Sweep, result: Result, curves: Curves) -> dict[str, Any]:
    of_run = curves.get(result.run.point.label, {}).get(result.run.seed, {})
    return {
        "point": result.run.point.label,
        "seed": result.run.seed,
        "status": result.status,
        "error": result.error,
        "folder": str(result.run.folder),
        "stopped": _stopped(result.run.folder) if result.status in GOOD else None,
        "seconds": seconds_of(result.run.folder) if result.status in GOOD else None,
        "final": {name: curve.values_T[-1] for name, curve in of_run.items()},
    }


def _stopped(folder: Path) -> str | None:
    """Why a run was ended before its last step, by a monitor for example; None if it was not."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return str(summary.get("stop_reason") or "stopped") if summary.get("status") == "stopped" else None
