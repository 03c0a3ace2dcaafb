"""`rlhf sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rlhf_plugin_recipes.sweep.plan import SweepRun
    from rlhf_plugin_recipes.sweep.read import Sweep


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="base.X=Y and the like. Repeatable.")
@click.option("--seeds", metavar="N,N", help="Seeds instead of the file's, for example 0,1,2.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Runs at a time.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Default: runs/sweeps/ and the sweep's name."
)
@click.option("--dry-run", is_flag=True, help="Check every run and list them; run nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def sweep(
    file: Path,
    settings: tuple[str, ...],
    seeds: str | None,
    jobs: int,
    out: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Train with many settings and seeds; the same command goes on where it stopped.

    Exit code 1 if a run failed; the others are done and compared.

    \b
    rlhf sweep mine.yaml --jobs 2
    rlhf sweep mine.yaml --seeds 0,1,2,3 --set base.trainer.steps=50
    """
    from rlhf_core.config import ConfigError
    from rlhf_plugin_recipes.process import locked
    from rlhf_plugin_recipes.sweep.plan import plan_runs
    from rlhf_plugin_recipes.sweep.read import read_sweep

    if not file.is_file():
        raise ConfigError(
            f"there is no file '{file}'", fix="write one: docs/recipes.md; `rlhf study list` has ablations"
        )
    chosen = read_sweep(file, settings, _seeds(seeds))
    root = out or Path("runs") / "sweeps" / chosen.name
    runs = plan_runs(chosen, root)
    if dry_run:
        _forecast(runs, as_json)
        return
    options = [*(f"--set {one}" for one in settings), *([f"--seeds {seeds}"] if seeds else [])]
    with locked(root):
        _run(chosen, runs, root, jobs, " ".join(["rlhf sweep", str(file), *options]), as_json)


def _run(chosen: Sweep, runs: list[SweepRun], root: Path, jobs: int, command: str, as_json: bool) -> None:
    from rlhf_core.cli import emit_json
    from rlhf_core.config import RlhfError
    from rlhf_plugin_recipes.sweep.plot import draw
    from rlhf_plugin_recipes.sweep.report import GOOD, curves_of, print_results, write_results
    from rlhf_plugin_recipes.sweep.run import run_all

    results = run_all(runs, jobs, root / "logs", lambda text: click.echo(text, err=True))
    curves = curves_of(chosen, results)
    result = write_results(chosen, results, curves, root, command)
    plot = draw(chosen.name, (chosen.metric, *chosen.also), curves, root / "curves.svg")
    if as_json:
        emit_json({**result, "folder": str(root), "plot": None if plot is None else str(plot)})
    else:
        print_results(chosen, result, root, plot)
    if any(one.status in ("interrupted", "waiting") for one in results):
        click.echo("the same command goes on from here", err=True)
        raise KeyboardInterrupt
    failed = [one for one in results if one.status not in GOOD]
    if failed:
        raise RlhfError(
            f"{len(failed)} of {len(results)} runs failed",
            why=failed[0].error,
            fix="the same command tries them again; the others are kept",
        )


def _forecast(runs: list[SweepRun], as_json: bool) -> None:
    from rlhf_core.cli import emit_json, table
    from rlhf_plugin_recipes.sweep.run import finished

    rows = [
        {"point": run.point.label, "seed": run.seed, "folder": str(run.folder), "finished": finished(run.folder)}
        for run in runs
    ]
    if as_json:
        emit_json(rows)
    else:
        table(("point", "seed", "what"), [(r["point"], r["seed"], "cached" if r["finished"] else "runs") for r in rows])


def _seeds(text: str | None) -> tuple[int, ...]:
    from rlhf_core.config import ConfigError

    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    if not all(part.isdigit() for part in parts) or (text is not None and not parts):
        raise ConfigError(f"--seeds {text} is not a list of whole numbers", fix="--seeds 0,1,2")
    return tuple(dict.fromkeys(int(part) for part in parts))
