"""`rlhf data demonstrations`: what supervised training would imitate, as a file."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("dataset", metavar="NAME")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help="JSON lines to write.")
@click.option(
    "--split", type=click.Choice(("train", "heldout")), default="train", show_default=True, help="Which rows."
)
@click.option(
    "--form",
    type=click.Choice(("openai", "sharegpt", "hermes")),
    default="openai",
    show_default=True,
    help="How turns, calls and results are written.",
)
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="A setting of the data set. Repeatable.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
def demonstrations(dataset: str, out: Path, split: str, form: str, settings: tuple[str, ...], force: bool) -> None:
    """Write the demonstrations of a data set, with calls and results of tools, one conversation a line.

    \b
    rlhf data demonstrations lookup --out demos.jsonl
    rlhf train --algo sft --model pocket-tools --dataset demos.jsonl --set trainer.learn=all
    """
    from rlhf_core.cli import context_of, open_registry
    from rlhf_core.config import ConfigError, parse_settings
    from rlhf_plugin_episodes.row_forms import to_row

    if out.is_dir():
        raise ConfigError(f"'{out}' is a folder", fix="name a file in it")
    if out.exists() and not force:
        raise ConfigError(f"'{out}' is there already", fix="name another file, or --force")
    ctx = context_of(open_registry(), dataset={"name": dataset, **parse_settings(settings)})
    rows = ctx.datasets.demonstrations(split)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8") as file:
        for row in rows:
            last = row.turn or {"role": "assistant", "content": row.completion}
            written = {"id": row.id, **to_row([*row.prompt, last], row.tools, form)}  # pyright: ignore[reportArgumentType]
            file.write(json.dumps(written, ensure_ascii=False) + "\n")
    click.echo(f"{len(rows)} conversations of {dataset} ({split}) in {out}")
