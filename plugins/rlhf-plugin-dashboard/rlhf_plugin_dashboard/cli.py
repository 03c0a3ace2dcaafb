"""`rlhf dashboard`."""

from __future__ import annotations

from pathlib import Path

import click

from rlhf_core.config import UserError

PORT = 8420


@click.command()
@click.argument("folder", metavar="[DIR]", default="runs", type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 takes a free one.")
@click.option("--open/--no-open", "opens", default=True, help="Open a browser where there is one.  [default: open]")
def dashboard(folder: Path, port: int, opens: bool) -> None:
    """Show runs as they go, in a browser on this machine: curves of several over one another, newest rollouts.

    DIR holds the runs, or is one. Nothing is written; only who has the printed address can read it. Ctrl-C ends it.

    \b
    rlhf dashboard
    rlhf dashboard runs/sweep --port 0 --no-open
    """
    from rlhf_plugin_dashboard.head import run_folders
    from rlhf_plugin_dashboard.serve import serve

    if not folder.is_dir():
        raise UserError(f"there is no folder '{folder}'", fix="name the folder of your runs: rlhf dashboard DIR")
    if next(run_folders(folder), None) is None:
        raise UserError(
            f"'{folder}' holds no run",
            why="no folder in it has a plan.json",
            fix="start one with: rlhf train --algo grpo --reward ensemble, or name the folder of your runs",
        )
    serve(folder, port, opens, click.echo)
