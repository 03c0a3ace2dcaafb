"""`rlhf reward score`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rlhf_core.rewards import Sample, Score


@click.command()
@click.option("--model", "folder", metavar="FOLDER", help="A reward model, its run, or an ensemble.")
@click.option("--reward", "name", metavar="NAME", help="A reward component, for example verifier.")
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="One setting of the reward. Repeatable.")
@click.option("--input", "file", required=True, metavar="FILE", help="JSON lines: prompt (or messages) and completion.")
@click.option("--stop", multiple=True, metavar="TEXT", help="Cut completions where this begins. Repeatable.")
@click.option("--keep-stop", is_flag=True, help="Leave the stop string at their end.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the scored rows here.")
@click.option(
    "--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True, help="For rewards that draw at random."
)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def score(
    folder: str | None,
    name: str | None,
    settings: tuple[str, ...],
    file: str,
    stop: tuple[str, ...],
    keep_stop: bool,
    output: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Score the completions of a file. Exit code 1 if not one of them has a score.

    Rows of one id are completions of one prompt, so the rows of an evaluation can be judged again, also as if other
    stop strings had ended them.

    \b
    rlhf reward score --model runs/x/final --input answers.jsonl
    rlhf reward score --reward verifier --set timeout_s=2 --input answers.jsonl --output scored.jsonl
    rlhf reward score --reward gsm8k --input evals/x/rows.jsonl --stop "Question:" --stop "[Question]"
    """
    from rlhf_core.cli import check_output, chosen_reward, context_of, emit_json, open_registry
    from rlhf_core.data import read_completions
    from rlhf_core.models import use_matmul_backend

    registry = open_registry()
    chosen = chosen_reward(registry, folder, name, settings)
    check_output(output, file)
    saved = read_completions(file)
    judged = saved.cut_at(stop, keep=keep_stop)
    dataset = {"name": "jsonl", "path": file, "heldout_fraction": 0.0}
    use_matmul_backend("auto")
    scores = judged.score(chosen, context_of(registry, seed=seed, dataset=dataset, reward=chosen))
    scored = [_row(row, one) for row, one in zip(judged.rows, scores)]
    good = [float(s.value) for s in scores if s.ok and s.value is not None]
    earlier = [float(v) for row in saved.rows if isinstance(v := row.get("value"), int | float)]
    result = {
        "reward": chosen.name,
        "mean": fmean(good) if good else None,
        "scored": len(good),
        "count": len(scores),
        "prompts": len({s.prompt.id for s in judged.samples}),
        "cut": sum(a.completion != b.completion for a, b in zip(saved.samples, judged.samples)),
        "earlier_mean": fmean(earlier) if earlier else None,
        "statuses": dict(Counter(s.status.value for s in scores)),
    }
    if output is not None:
        _write(output, scored)
    if as_json:
        emit_json({**result, "rows": scored})
    else:
        _print(result, judged.samples, scores, output)
    if not good:
        first = scores[0]
        click.echo(f"no row of '{file}' has a score; the first: {first.status.value}: {first.detail}", err=True)
    raise SystemExit(0 if result["scored"] else 1)


def _row(row: Mapping[str, Any], one: Score) -> dict[str, Any]:
    extra = {"detail": one.detail} if one.detail else {}
    return {**row, "score": one.value, "status": one.status.value, "parts": dict(one.parts), **extra}


def _write(output: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    import json

    from rlhf_core.data import json_values, write_text

    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, "".join(json.dumps(json_values(row), ensure_ascii=False) + "\n" for row in rows))


def _print(result: Mapping[str, Any], samples: Sequence[Sample], scores: Sequence[Score], output: Path | None) -> None:
    from rlhf_core.cli import table

    values = ["" if s.value is None else f"{s.value:.4f}" for s in scores]
    table(
        ("score", "status", "prompt", "completion", ""),
        (
            (v, s.status.value, _shorten(x.prompt.text), _shorten(x.completion), "" if s.ok else _shorten(s.detail, 80))
            for v, s, x in zip(values, scores, samples)
        ),
    )
    mean = "none" if result["mean"] is None else f"{result['mean']:.4f}"
    cut = f"; {result['cut']} completions were cut" if result["cut"] else ""
    click.echo(f"\nmean {mean} over {result['scored']} of {result['count']} rows{cut}")
    if result["earlier_mean"] is not None:
        click.echo(f"mean {result['earlier_mean']:.4f} in the file's column 'value'")
    if output:
        click.echo(f"written to {output}")


def _shorten(text: str, width: int = 40) -> str:
    """One line of at most ``width`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 3] + "..."
