"""What `rlhf memory plan --splits` prints for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rlhf_core.cli import table
from rlhf_plugin_preflight.memory.amounts import readable
from rlhf_plugin_preflight.memory.splits import Question, Split, left_open

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext

HEADERS = ("cards", "strategy", "peak of a trainer's card", "a server's card: weights", "cache", "tokens", "fits")


def print_splits(ctx: BuildContext, splits: Sequence[Split], question: Question) -> None:
    click.echo(f"{ctx.config.trainer.name} of {ctx.config.model.path} on {question.cards} cards of ", nl=False)
    click.echo(f"{readable(question.device)}; a server's sizes are estimates\n")
    table(HEADERS, [_row(split, question) for split in splits])
    click.echo()
    for split in (s for s in splits if s.refusal):
        click.echo(f"{name_of(split, question)}: no, {split.refusal}")
    if all(split.refusal for split in splits):
        click.echo("none holds this run; rlhf memory plan without --splits names the cheapest change")
        return
    lines: list[str] = []
    for split in (s for s in splits if not s.refusal):
        lines += split.commands
        click.echo(f"\n# {name_of(split, question)}")
        click.echo("\n".join(split.commands))
    click.echo()
    for line in left_open(lines):
        click.echo(line)


def name_of(split: Split, question: Question) -> str:
    """Example: ``4 train, 4 serve (2 servers of 2)``"""
    engine = split.engine
    if not engine.servers:
        return f"{engine.train} train and sample"
    many = f" ({engine.servers} servers of {engine.cards})" if engine.cards > 1 else ""
    return f"{engine.train} train, {question.cards - engine.train} serve{many}"


def _row(split: Split, question: Question) -> list[str]:
    engine, plan = split.engine, split.plan
    return [
        name_of(split, question),
        plan.placement.strategy,
        f"{readable(plan.peak)} in {plan.peak_phase}",
        readable(engine.weights),
        readable(engine.cache),
        f"{engine.tokens:,}",
        "no" if split.refusal else "yes",
    ]
