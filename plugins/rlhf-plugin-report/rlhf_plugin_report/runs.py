"""`rlhf runs`: list, show and compare runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlhf_core.cli import complete, emit_json, table
from rlhf_core.config import RlhfError, UserError
from rlhf_core.runs import StoredRun

if TYPE_CHECKING:
    from rlhf_core.runs import StoredRun

SORTS = ("started", "name", "status", "algo", "steps", "reward", "loss")
STATUSES = ("completed", "stopped", "interrupted", "failed", "unfinished", "damaged")
SLOTS = ("trainer", "loss", "advantage", "reward")


@click.command("list")
@click.option("--root", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where to look.")
@click.option("--sort", type=click.Choice(SORTS), default="started", show_default=True, help="Column to sort by.")
@click.option("--reverse", is_flag=True, help="Largest, last or newest first.")
@click.option("--algo", help="Only runs of this algorithm.")
@click.option("--status", type=click.Choice(STATUSES), help="Only runs of this status.")
@click.option("--model", help="Only runs whose model has this in its path.")
@click.option("--dataset", help="Only runs whose data has this in its name.")
@click.option("--json", "as_json", is_flag=True, help="For machines; every column.")
def list_(root: Path, sort: str, reverse: bool, as_json: bool, **wanted: str | None) -> None:
    """Runs of a folder, unfinished ones included. A wide terminal shows more columns.

    \b
    rlhf runs list --algo grpo --sort reward --reverse
    """
    from rlhf_plugin_report.runs_table import print_runs, sorted_rows

    if not root.is_dir() and root != Path("runs"):
        raise UserError(f"there is no folder '{root}'", fix="check --root")
    rows: list[dict[str, Any]] = []
    for path in sorted(plan.parent for plan in root.glob("*/plan.json")):
        try:
            rows.append(_head(StoredRun.find(str(path))))
        except RlhfError as error:
            rows.append({"run": str(path), "status": "damaged", "started": _started(path), "error": str(error)})
    shown = sorted_rows([row for row in rows if _matches(row, wanted)], sort, reverse=reverse)
    if as_json:
        emit_json(shown)
    elif not rows:
        click.echo(f"no runs in {root}; start one with: rlhf train --algo grpo --reward ensemble")
    elif not shown:
        click.echo(f"none of the {len(rows)} runs in {root} is of this kind")
    else:
        print_runs(shown)


def _matches(row: dict[str, Any], wanted: Mapping[str, str | None]) -> bool:
    exact = all(wanted.get(k) in (None, row.get(k)) for k in ("algo", "status"))
    return exact and all((wanted.get(k) or "") in str(row.get(k, "")) for k in ("model", "dataset"))


@click.command()
@click.argument("run", shell_complete=complete.runs)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def show(run: str, as_json: bool) -> None:
    """What a run is, how far it came, and its metrics at the first and the last step."""
    stored = StoredRun.find(run)
    series = stored.series()
    if as_json:
        ends = {k: {"first": v[0], "last": v[-1], "count": len(v)} for k, v in series.items()}
        emit_json(
            {
                **_head(stored),
                "checkpoints": stored.checkpoints,
                "components": stored.plan.components,
                "versions": stored.plan.versions,
                "metrics": ends,
                "summary": stored.summary,
            }
        )
        return
    for key, value in _head(stored).items():
        if value not in ("", None):
            click.echo(f"{key + ':':<12}{_text(value)}")
    plugins = {f"{c['distribution']} {c['version']}" for c in stored.plan.components}
    click.echo(f"{'plugins:':<12}" + ", ".join(sorted(plugins)))
    click.echo(f"{'saved:':<12}" + (", ".join(f"step {s}" for s in stored.checkpoints) or "no checkpoint"))
    if series:
        click.echo("")
        table(("metric", "first", "last"), ((k, _text(v[0]), _text(v[-1])) for k, v in series.items()))
    if stored.failure and not stored.summary:
        click.echo(f"\n{stored.failure['error']}")
    if stored.summary is None and stored.checkpoints:
        click.echo(f"\ngo on with: rlhf train --resume {stored.path}")


@click.command()
@click.argument("names", nargs=-1, shell_complete=complete.runs, required=True, metavar="RUN RUN...")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def compare(names: tuple[str, ...], as_json: bool) -> None:
    """Settings in which runs differ, and their last metrics side by side."""
    if len(names) < 2:
        raise UserError("compare needs two runs or more", fix="rlhf runs compare RUN RUN")
    stored_runs = [StoredRun.find(name) for name in names]
    labels = _labels(stored_runs)
    settings = _different([_flat(r.plan.config) for r in stored_runs])
    last = [{k: v[-1] for k, v in r.series().items()} for r in stored_runs]
    metrics = {k: [row.get(k) for row in last] for k in dict.fromkeys(k for row in last for k in row)}
    warnings = _seen_in_training(stored_runs, labels)
    if as_json:
        heads = [_head(r) for r in stored_runs]
        emit_json({"runs": heads, "settings": settings, "metrics": metrics, "warnings": warnings})
        return
    table(("setting", *labels), ((k, *map(_text, v)) for k, v in settings.items()))
    click.echo("")
    rows = [("status", [r.status for r in stored_runs]), ("steps", [r.steps for r in stored_runs]), *metrics.items()]
    table(("last value of", *labels), ((k, *map(_text, v)) for k, v in rows))
    for warning in warnings:
        click.secho(f"warning: {warning}", fg="yellow")


def _seen_in_training(stored_runs: list[StoredRun], labels: list[str]) -> list[str]:
    """A warning for each pair of runs of which one was trained on what the other (or it itself) holds out."""
    warnings: list[str] = []
    for label, trained in zip(labels, stored_runs):
        for other, tested in zip(labels, stored_runs):
            prompts = trained.seen_in_training(tested)
            if prompts.seen:
                whose = "it" if other == label else other
                warnings.append(
                    f"{label} was trained (in {', '.join(prompts.runs)}) on {prompts.seen} of the {prompts.heldout} "
                    f"prompts that {whose} holds out: its figures on them are too good"
                )
    return warnings


def _head(run: StoredRun) -> dict[str, Any]:
    last = {key: values[-1] for key, values in run.series().items()}
    head = {
        "run": str(run.path),
        "started": _started(run.path),
        "status": run.status,
        "steps": run.steps,
        "seed": run.plan.seed,
        "model": run.plan.config["model"]["path"],
        "dataset": run.datasets,
        "last_reward": last.get("reward/mean"),
        "last_loss": last.get("loss"),
    }
    names = {("algo" if slot == "trainer" else slot): run.name_of(slot) for slot in SLOTS}
    reason = {"stop_reason": run.summary["stop_reason"]} if run.summary and run.summary.get("stop_reason") else {}
    return {**head, **names, **reason}


def _started(path: Path) -> str:
    """When a run was begun: the time of its plan. Example: ``2026-01-31 14:25``"""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime((path / "plan.json").stat().st_mtime))


def _labels(stored_runs: list[StoredRun]) -> list[str]:
    names = [r.path.name for r in stored_runs]
    return names if len(set(names)) == len(names) else [str(r.path) for r in stored_runs]


def _flat(value: Any, key: str = "") -> dict[str, Any]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if pairs is None or not value:
        return {key: value}
    return {k: v for name, part in pairs for k, v in _flat(part, f"{key}.{name}" if key else str(name)).items()}


def _different(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    keys = dict.fromkeys(k for row in rows for k in row)
    table = {k: [row.get(k) for row in rows] for k in keys}
    return {k: v for k, v in table.items() if any(x != v[0] for x in v)}


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
