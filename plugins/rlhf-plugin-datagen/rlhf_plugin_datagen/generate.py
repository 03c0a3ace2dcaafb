"""`rlhf data generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rlhf_core.cli import OpenGroup, emit_json, open_registry

COMMANDS = ("generate", "filter", "pairs", "flywheel")
"""Commands of `rlhf data` that are no kind of data."""


class Generate(click.Command):
    """`rlhf data generate KIND`, which is `rlhf data KIND` where another distribution brings that kind of data."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """That of the other distribution's command for its kind, else this command's."""
        other = brought(args[0], parent) if args else None
        if other is not None:
            return other.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


def brought(kind: str, parent: click.Context | None) -> click.Command | None:
    group: Any = parent.command if parent else None
    if parent is None or not isinstance(group, OpenGroup) or kind in COMMANDS or group.has_own(parent, kind):
        return None
    return group.get_command(parent, kind)


@click.command(cls=Generate, context_settings={"show_default": True})
@click.argument("kind", metavar="KIND")
@click.option(
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="JSON lines; the same command goes on where it stopped.",
)
@click.option(
    "--dataset",
    default="pocket/assistant",
    metavar="D",
    help="Prompts: built-in name, .jsonl/.parquet file, or hub id. For grades, rows may have a completion.",
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="Only the first N prompts.")
@click.option("--judge", "judge_name", metavar="NAME", help="Judge component, for example local or anthropic.")
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="One setting of the judge. Repeatable.")
@click.option("--model", metavar="M", help="Model that writes responses: hub id, folder, run, .gguf file, or pocket.")
@click.option("--generator", metavar="NAME", help="Judge component that writes responses, instead of a model.")
@click.option(
    "--generator-set",
    "generator_settings",
    multiple=True,
    metavar="a.b=c",
    help="One setting of the generator. Repeatable.",
)
@click.option("--constitution", metavar="FILE", help="YAML list of principles; default: seven, see the README.")
@click.option("--rubric", default="assistant", metavar="R", help="For grades: a name or YAML file.")
@click.option("--max-tokens", type=click.IntRange(1), help="Of a response; default 256, with the pocket model 64.")
@click.option("--judge-tokens", type=click.IntRange(1), default=512, help="Of a judge's answer.")
@click.option("--temperature", type=click.FloatRange(0), default=1.0, help="Of responses.")
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    default=16,
    help="Prompts asked about together, then written; a kill loses at most so many answers.",
)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, help="The same seed, the same responses.")
@click.option("--dry-run", is_flag=True, help="Print requests, tokens and dollars; ask and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def generate(kind: str, output: Path, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Make training data with models: preferences, sft or grades; speech, where rlhf-plugin-tts is installed.

    preferences: two responses to each prompt, and a judge with a constitution that says which is better, and why.
    sft: a draft, its critique and its revision by the constitution. grades: a grade for each criterion of a rubric.

    \b
    rlhf data generate preferences --model runs/sft/final --judge anthropic --output pairs.jsonl --dry-run
    rlhf data generate sft --judge local --set model.path=./instruct --dataset prompts.jsonl --output sft.jsonl
    rlhf data generate grades --judge anthropic --rubric rubric.yaml --dataset answers.jsonl --output graded.jsonl
    """
    from rlhf_plugin_datagen.job import estimate, make_job
    from rlhf_plugin_datagen.report import require_rows, show, show_estimate
    from rlhf_plugin_datagen.run import run

    job = make_job(open_registry(), kind, output, options)
    if dry_run:
        costs = estimate(job)
        emit_json(costs) if as_json else show_estimate(costs)
        return
    job.generator.preflight(job.ctx)
    job.judge.preflight(job.ctx)
    costs = estimate(job)
    click.echo(
        f"{costs['requests']} questions, about {costs['cost_usd']:.4f} USD with every answer at its longest", err=True
    )
    result = run(job, say=lambda text: click.echo(text, err=True))
    emit_json(result) if as_json else show(result)
    require_rows(result)
    raise SystemExit(1 if result["unanswered"] else 0)
