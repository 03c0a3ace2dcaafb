"""`rlhf data filter`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from rlhf_core.cli import check_output, chosen_reward, context_of, emit_json, open_registry
from rlhf_core.config import Registry
from rlhf_core.data import DatasetError, Datasets, PreferencePair, write_text


@click.command("filter", context_settings={"show_default": True})
@click.option("--dataset", required=True, metavar="D", help="Preference pairs: built-in name, file, or hub id.")
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="FILE", help="The kept pairs.")
@click.option("--model", "folder", metavar="FOLDER", help="A reward model, its run, or an ensemble.")
@click.option("--reward", "name", metavar="NAME", help="A reward component instead.")
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="One setting of the reward. Repeatable.")
@click.option(
    "--keep",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.5,
    help="Share of the pairs to keep.",
)
@click.option(
    "--by",
    type=click.Choice(("absolute", "signed", "random")),
    default="absolute",
    help="Size of the margin, the margin itself, or chance (the control; needs no reward).",
)
@click.option("--stratify", metavar="COLUMN", help="Keep this share of each value of a column (or of each source).")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, help="For --by random.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def filter_pairs(dataset: str, output: Path, as_json: bool, **options: Any) -> None:
    """Keep the preference pairs that a reward model is surest of.

    \b
    rlhf data filter --dataset pairs.jsonl --model runs/rm/final --keep 0.5 --output sure.jsonl
    rlhf data filter --dataset pairs.jsonl --by random --keep 0.5 --output control.jsonl
    """
    from rlhf_plugin_datagen.confidence import confidences, row_of, summary, top
    from rlhf_plugin_datagen.outside import bare_name, open_datasets

    registry, by, keep, column = open_registry(), options["by"], options["keep"], options["stratify"]
    check_output(output)
    datasets = open_datasets(registry, dataset, options["seed"], heldout_fraction=0.0)
    pairs = datasets.pairs("train")
    strata = strata_of(datasets, pairs, column)
    margins: list[float | None] = [None] * len(pairs)
    if by != "random":
        margins = scored(registry, options["folder"], options["name"], options["settings"], pairs, options["seed"])
    kept_rows = top(confidences(margins, pairs, by, options["seed"]), keep, strata)
    columns = [{} if column is None else {column: s} for s in strata]
    write_rows(output, [row_of(bare_name(datasets, pairs[i]), margins[i], columns[i]) for i in kept_rows])
    kept = Counter(strata[i] for i in kept_rows)
    result = {
        "output": str(output),
        "by": by,
        "keep": keep,
        **summary(margins, kept_rows),
        "dropped": {reason: count for reason, count in datasets.counts.items() if count},
        "strata": {name: {"all": n, "kept": kept[name]} for name, n in Counter(strata if column else ()).items()},
    }
    emit_json(result) if as_json else show(result)


def scored(
    registry: Registry,
    folder: str | None,
    name: str | None,
    settings: Sequence[str],
    pairs: Sequence[PreferencePair],
    seed: int,
) -> list[float | None]:
    """Margins of pairs under a reward model's folder or a reward component."""
    from rlhf_plugin_datagen.confidence import margins

    chosen = chosen_reward(registry, folder, name, settings)
    ctx = context_of(registry, seed=seed, dataset={"name": "pocket/assistant"})
    chosen.preflight(ctx)
    with ctx.open("reward", chosen) as reward:
        return margins(reward, pairs)


def strata_of(datasets: Datasets, pairs: Sequence[PreferencePair], column: str | None) -> list[str]:
    if column is None:
        return [""] * len(pairs)
    if column == "source" and len(datasets.sources) > 1:
        return [p.source for p in pairs]
    rows = {s.name(r, "train"): r for s in datasets.sources for r in s.records("pairs", "train", Counter())}
    for pair in pairs:
        if rows[pair.id].row.get(column) is None:
            raise DatasetError(
                f"a pair has no column '{column}' to stratify by",
                where=rows[pair.id].where,
                why=f"its columns: {', '.join(sorted(rows[pair.id].row))}",
                fix="check --stratify",
            )
    return [str(rows[p.id].row[column]) for p in pairs]


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """JSON lines, all or none of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def show(result: dict[str, Any]) -> None:
    chosen, total = result["kept"], result["all"]
    click.echo(f"kept {chosen['pairs']} of {total['pairs']} pairs by {result['by']} margin, in {result['output']}")
    if chosen["mean_abs_margin"] is not None:
        click.echo(
            f"mean |margin| {chosen['mean_abs_margin']:.3f} (of all {total['mean_abs_margin']:.3f}); the model "
            f"denies the label of {chosen['label_denied']:.1%} (of all {total['label_denied']:.1%})"
        )
    for number, quarter in enumerate(result["quarters"], 1):
        if quarter["pairs"]:
            size, right = quarter["mean_abs_margin"], 1 - quarter["label_denied"]
            click.echo(
                f"  quarter {number} by |margin|: mean {size:.3f}, the model agrees with {right:.1%} of the labels"
            )
    if result["unscored"] and result["by"] != "random":
        click.echo(f"{result['unscored']} pairs have no score and are not kept")
    if result["dropped"]:
        click.echo("dropped before: " + ", ".join(f"{k} {n}" for k, n in sorted(result["dropped"].items())))
    for stratum, n in result["strata"].items():
        click.echo(f"  {stratum}: {n['kept']} of {n['all']}")
