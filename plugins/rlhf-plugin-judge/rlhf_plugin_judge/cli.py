"""`rlhf judge agreement`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from rlhf_core.cli import context_of, emit_json, open_registry


@click.command(context_settings={"show_default": True})
@click.option("--judge", "name", default="anthropic", metavar="NAME", help="Which judge.")
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="One of its settings. Repeatable.")
@click.option(
    "--dataset",
    default="pocket/assistant",
    metavar="D",
    help="Pairs with labels: chosen and rejected.",
)
@click.option("--split", type=click.Choice(("heldout", "train")), default="heldout", help="Which of its pairs.")
@click.option("--pairs", "count", type=click.IntRange(1), default=100, help="The first so many.")
@click.option("--criterion", metavar="TEXT", help="What makes a response better; by default what reward 'judge' asks.")
@click.option("--max-tokens", type=click.IntRange(1), default=512, help="Longest answer.")
@click.option("--form", type=click.Choice(("json", "short")), default="json", help="short: A or B, as it was trained.")
@click.option("--votes", type=click.IntRange(1), default=1, help="Answers in each order, whose share is a probability.")
@click.option("--temperature", type=click.FloatRange(0), default=0.0, help="Of the answers; several votes need one.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, help="For judges that can be seeded.")
@click.option("--dry-run", is_flag=True, help="Say how much would be asked and what it can cost; ask nothing.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def agreement(name: str, settings: tuple[str, ...], dataset: str, dry_run: bool, as_json: bool, **options: Any) -> None:
    """How far a judge agrees with labelled pairs, each asked in both orders. Exit code 1 if it judged none.

    \b
    rlhf judge agreement --dataset pairs.jsonl --pairs 200 --dry-run
    rlhf judge agreement --judge local --set model.path=Qwen/Qwen3-4B --dataset pairs.jsonl
    """
    from rlhf_core.config import parse_settings
    from rlhf_plugin_judge.grading import close_judge
    from rlhf_plugin_judge.pairwise import matches_of, pair_agreement, questions
    from rlhf_plugin_judge.rewards import Comparing, JudgeRewardConfig

    registry = open_registry()
    config = registry.config("judge", name, parse_settings(settings))
    ctx = context_of(registry, seed=options["seed"], dataset={"name": dataset})
    pairs = ctx.datasets.pairs(options["split"])[: options["count"]]
    text = options["criterion"] or str(JudgeRewardConfig.model_fields["criterion"].default)
    keys = ("max_tokens", "seed", "form", "votes", "temperature")
    asking = Comparing.from_settings({key: options[key] for key in keys}, "the options")
    if dry_run:
        requests = questions(matches_of(pairs), text, asking)
        most_usd = getattr(config, "most_usd", lambda requests: 0.0)(requests)
        estimate = {"judge": name, "pairs": len(pairs), "questions": len(requests), "most_usd": most_usd}
        emit_json(estimate) if as_json else show_estimate(estimate)
        return
    config.preflight(ctx)
    judge = config.build(ctx)
    try:
        if callable(listed := getattr(judge, "listed", None)):
            listed()  # nobody there, or a key that is refused, is told before the first question
        result = {"judge": name, **pair_agreement(judge, pairs, text, asking)}
    finally:
        close_judge(judge)
    emit_json(result) if as_json else show(result)
    raise SystemExit(0 if result["judged"] else 1)


def show_estimate(estimate: Mapping[str, Any]) -> None:
    click.echo(
        f"{estimate['questions']} questions about {estimate['pairs']} pairs: at most {estimate['most_usd']:.4f} USD if "
        "each is answered at the first attempt; judge.max_cost_usd holds in any case"
    )


def show(result: Mapping[str, Any]) -> None:
    click.echo(
        f"judged {result['judged']} of {result['count']} pairs"
        + "".join(f", {count} {status}" for status, count in result["missing"].items())
    )
    if result["judged"]:
        click.echo(
            f"agrees with the labels: {result['accuracy']:.3f} (95 % interval {result['low']:.3f} to "
            f"{result['high']:.3f}), ties count half"
        )
        click.echo(f"ties {result['ties']:.3f}, position decided {result['flipped']:.3f}")
        click.echo(f"as probabilities: Brier score {result['brier']:.3f}, calibration error {result['ece']:.3f}")
    click.echo(f"cost {result['cost_usd']:.6f} USD")
