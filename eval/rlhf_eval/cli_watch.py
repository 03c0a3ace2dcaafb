"""`rlhf eval watch`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from rlhf_eval.cli import by_option, engine_options, suite_options


@click.command()
@click.argument("run")
@click.argument("suites", metavar="SUITE...", nargs=-1, required=True)
@suite_options
@click.option(
    "--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True, help="The same for every checkpoint."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Default RUN/evals/SUITE. Of several suites: FOLDER/SUITE.",
)
@by_option
@engine_options
@click.option("--once", is_flag=True, help="Evaluate what is there and do not wait for more.")
@click.option("--base/--no-base", default=True, show_default=True, help="Also the model that the run started from.")
@click.option("--poll", type=click.FloatRange(0.1), default=15.0, show_default=True, help="Seconds between two looks.")
@click.option(
    "--patience",
    type=click.FloatRange(1),
    default=3600.0,
    show_default=True,
    help="Longest wait for a checkpoint, in seconds.",
)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def watch(
    run: str,
    suites: tuple[str, ...],
    by: tuple[str, ...],
    engine: str,
    engine_settings: tuple[str, ...],
    seed: int,
    out: Path | None,
    once: bool,
    base: bool,
    poll: float,
    patience: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Evaluate every checkpoint of RUN on suites, all with the same settings and seeds, until the run has ended.

    Prints the best one, and whether the form of the answers drifts (strict against lenient verdicts). With several
    suites, say for which one rows and settings are, as in `rlhf eval run`; a checkpoint is loaded once for all.

    \b
    rlhf eval watch runs/grpo-20260131-142501 gsm8k --data test.jsonl --limit 200
    rlhf eval watch RUN gsm8k ifeval --data gsm8k=test.jsonl --data ifeval=input_data.jsonl
    """
    from rlhf_core.cli import context_of, emit_json, open_registry
    from rlhf_eval.cli import suite_of
    from rlhf_eval.several import options_of
    from rlhf_eval.watch import Watcher

    ctx = context_of(open_registry(), seed=seed)
    chosen = [suite_of(ctx, name, **share) for name, share in zip(suites, options_of(suites, options))]
    watcher = Watcher(run, chosen, ctx, out, base=base, by=by, engine=engine, engine_settings=engine_settings)
    summaries = watcher.follow(once=once, poll_s=poll, patience_s=patience, say=lambda text: click.echo(text, err=True))
    if as_json:
        emit_json(summaries if len(summaries) > 1 else summaries[0])
        return
    for summary in summaries:
        if len(summaries) > 1:
            click.secho(f"\n{summary['suite']}", bold=True)
        show(summary)


def show(summary: Mapping[str, Any]) -> None:
    from rlhf_core.cli import table
    from rlhf_eval.show import interval

    checkpoints = summary["checkpoints"]
    modes = [mode for mode in ("strict", "lenient") if any(mode in c for c in checkpoints)]
    rows = [
        (
            c["checkpoint"],
            interval(c),
            *(f"{c[mode]:.3f}" if mode in c else "" for mode in modes),
            f"{c['truncated']:.1%}",
            f"{c['tokens']:.0f}",
            "best" if c["checkpoint"] == summary["best"] else "",
        )
        for c in checkpoints
    ]
    table(("checkpoint", "right", *modes, "truncated", "tokens", ""), rows)
    if summary["missed"]:
        click.secho(
            f"warning: removed by the run before they could be evaluated: {', '.join(summary['missed'])}; "
            "raise trainer.keep_checkpoints",
            fg="yellow",
        )
    if summary["drift"]:
        click.echo(summary["drift"])
