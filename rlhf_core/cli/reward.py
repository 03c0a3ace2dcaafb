"""`rlhf reward`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlhf_core.cli.groups import OpenGroup

if TYPE_CHECKING:
    from rlhf_core.types import Sample, Score


@click.group(cls=OpenGroup, path="reward")
def reward() -> None:
    """Score completions with a reward."""


@reward.command()
@click.option("--model", "folder", metavar="FOLDER", help="A reward model or an ensemble of them.")
@click.option("--reward", "name", metavar="NAME", help="A reward component, for example verifier.")
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="One setting of the reward. Repeatable.")
@click.option("--input", "file", required=True, metavar="FILE", help="JSON lines: prompt (or messages) and completion.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the scored rows here.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="For rewards that draw at random.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def score(
    folder: str | None,
    name: str | None,
    settings: tuple[str, ...],
    file: str,
    output: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Score the completions of a file. Exit code 1 if not one of them has a score.

    \b
    rlhf reward score --model runs/x/final --input answers.jsonl
    rlhf reward score --reward verifier --set timeout_s=2 --input answers.jsonl --output scored.jsonl
    """
    from rlhf_core.cli.common import emit_json, quiet_libraries, set_up_logging
    from rlhf_core.cli.components import context_of, open_component, open_registry
    from rlhf_core.cli.scoring import check_output, chosen_reward, read_samples
    from rlhf_core.contracts import score_samples
    from rlhf_core.kernels.matmul import use_matmul_backend

    set_up_logging()
    registry = open_registry()
    chosen = chosen_reward(registry, folder, name, settings)
    rows, samples = read_samples(file)
    check_output(output)
    dataset = {"name": "jsonl", "path": file, "heldout_fraction": 0.0}
    ctx = context_of(registry, seed=seed, dataset=dataset, reward=chosen)
    chosen.preflight(ctx)
    quiet_libraries()
    use_matmul_backend("auto")
    with open_component("reward", chosen, ctx) as one:
        scores = score_samples(one, samples, f"reward '{chosen.name}'")
    scored = [_row(row, one) for row, one in zip(rows, scores)]
    result = _summary(chosen.name, scores)
    if output is not None:
        _write(output, scored)
    if as_json:
        emit_json({**result, "rows": scored})
    else:
        _print(result, samples, scores, output)
    raise SystemExit(0 if result["scored"] else 1)


def _row(row: Mapping[str, Any], one: Score) -> dict[str, Any]:
    extra = {"detail": one.detail} if one.detail else {}
    return {**row, "score": one.value, "status": one.status.value, "parts": dict(one.parts), **extra}


def _summary(name: str, scores: Sequence[Score]) -> dict[str, Any]:
    from collections import Counter

    from rlhf_core.functional.statistics import mean

    good = [float(s.value) for s in scores if s.ok and s.value is not None]
    return {
        "reward": name,
        "mean": mean(good) if good else None,
        "scored": len(good),
        "count": len(scores),
        "statuses": dict(Counter(s.status.value for s in scores)),
    }


def _write(output: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    import json

    from rlhf_core.runs.atomic import write_text
    from rlhf_core.runs.jsonl import json_values

    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, "".join(json.dumps(json_values(row), ensure_ascii=False) + "\n" for row in rows))


def _print(result: Mapping[str, Any], samples: Sequence[Sample], scores: Sequence[Score], output: Path | None) -> None:
    from rlhf_core.cli.common import shorten, table

    values = ["" if s.value is None else f"{s.value:.4f}" for s in scores]
    table(
        ("score", "status", "prompt", "completion", ""),
        (
            (v, s.status.value, shorten(x.prompt.text), shorten(x.completion), "" if s.ok else shorten(s.detail, 80))
            for v, s, x in zip(values, scores, samples)
        ),
    )
    mean = "none" if result["mean"] is None else f"{result['mean']:.4f}"
    click.echo(f"\nmean {mean} over {result['scored']} of {result['count']} rows")
    if output:
        click.echo(f"written to {output}")
