"""`rlhf report`."""

from __future__ import annotations

from pathlib import Path

import click

from rlhf_core.data import write_text


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="FILE", help="Default: report.html in the (first) run."
)
@click.option("--rollouts", type=click.IntRange(0), default=10_000, show_default=True, help="Most completions per run.")
def report(runs: tuple[str, ...], output: Path | None, rollouts: int) -> None:
    """Write one HTML page of a run, which opens without a network: curves, rollouts, settings, warnings.

    `rlhf train` writes the same page when a run is over; RLHF_REPORT=0 in the environment switches that off.

    \b
    rlhf report runs/grpo-20260131-142501
    rlhf report runs/a runs/b --output compared.html
    """
    from rlhf_plugin_report.page import render
    from rlhf_plugin_report.read import read_page
    from rlhf_plugin_report.stored import open_run

    opened = [open_run(name) for name in runs]
    page = output or opened[0].path / "report.html"
    write_text(page, render(read_page(opened, rollouts)))
    click.echo(f"page: {page}")
