"""`rlhf data flywheel`: train a reward model, keep the pairs that it is surest of, train on these, and again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rlhf_core.cli import emit_json, open_registry, table


@click.command(context_settings={"show_default": True})
@click.option("--dataset", default="pocket/assistant", metavar="D", help="Preference pairs.")
@click.option("--model", default="pocket", metavar="M", help="Trunk of the reward models.")
@click.option(
    "--run-dir",
    "folder",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Everything is kept here; the same command goes on where it stopped.",
)
@click.option("--cycles", type=click.IntRange(1), default=2, help="Filter and retrain so often.")
@click.option(
    "--keep",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.5,
    help="Share of a cycle's pairs that the next is trained on.",
)
@click.option(
    "--by",
    type=click.Choice(("absolute", "signed")),
    default="absolute",
    help="Size of the margin, or the margin itself.",
)
@click.option("--control", is_flag=True, help="Also train on as many pairs drawn at random, each cycle.")
@click.option(
    "--same-updates",
    is_flag=True,
    help="Walk smaller sets more often, so that every training makes as many updates as the first.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="a.b=c",
    help="One setting of the trainings, or dataset.NAME=... of the pairs. Repeatable.",
)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def flywheel(folder: Path, as_json: bool, **options: Any) -> None:
    """Train a reward model, keep the pairs it is surest of, retrain on them, in cycles.

    Accuracy is on the same held-out pairs every time, which are never filtered.

    \b
    rlhf data flywheel --run-dir runs/wheel
    rlhf data flywheel --dataset pairs.jsonl --model ./trunk --control --run-dir runs/wheel
    """
    from rlhf_plugin_datagen.cycles import Flywheel

    result = Flywheel(open_registry(), folder, options).run()
    emit_json(result) if as_json else show(result)


def show(result: dict[str, Any]) -> None:
    table(
        ("cycle", "pairs", "trained on", "accuracy", "95% interval", "change"),
        [
            (
                t["cycle"],
                t["pairs"],
                t["how"],
                f"{t['accuracy']:.1%}",
                f"{t['low']:.1%} to {t['high']:.1%}",
                "" if t["change"] is None else f"{100 * t['change']:+.1f} pp",
            )
            for t in result["trainings"]
        ],
    )
    click.echo(f"\non {result['trainings'][0]['heldout_pairs']} held-out pairs; everything is in {result['run_dir']}")
