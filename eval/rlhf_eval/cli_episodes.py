"""`rlhf eval episodes`."""

from __future__ import annotations

from pathlib import Path

import click

from rlhf_core.cli import say


@click.command()
@click.argument("environment", metavar="ENV")
@click.option("--model", metavar="M", help="Hub id, folder or run. Default: the environment's, or pocket-tools.")
@click.option("--dataset", metavar="D", help="Prompts; held-out ones where it has them. Default: the environment's.")
@click.option("--reward", metavar="NAME", help="What judges an episode. Default: the environment's own score.")
@click.option("--n", "samples", type=click.IntRange(1), default=1, show_default=True, help="Episodes of each prompt.")
@click.option("--limit", type=click.IntRange(1), help="Only the first prompts.")
@click.option("--temperature", type=click.FloatRange(0), default=1.0, show_default=True, help="0 is greedy.")
@click.option("--max-tokens", type=click.IntRange(1), help="Of an episode, results included. Default: as in training.")
@click.option(
    "--best-by",
    multiple=True,
    metavar="R",
    help="Also choose the best of N by this: the folder of a reward model, reward:NAME or judge:NAME. Repeatable.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="a.b=c",
    help="environment.X, agent.X, dataset.X or reward.X. Repeatable.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True, help="The same seed, the same rows."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where rows and report go; default evals/episodes-ENV-MODEL-HASH.",
)
@click.option("--failures", type=click.IntRange(0), default=2, show_default=True, help="Examples per category.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def episodes(
    environment: str,
    model: str | None,
    dataset: str | None,
    reward: str | None,
    samples: int,
    limit: int | None,
    temperature: float,
    max_tokens: int | None,
    best_by: tuple[str, ...],
    settings: tuple[str, ...],
    seed: int,
    out: Path | None,
    failures: int,
    as_json: bool,
) -> None:
    """Let a model play in an environment: success, pass@k and best-of-N. The same command goes on after a crash.

    \b
    rlhf eval episodes lookup --model RUN
    rlhf eval episodes lookup --n 8 --limit 50 --set 'dataset.calls=[2,3]'
    rlhf eval episodes tools --dataset prompts.jsonl --reward verifier
    """
    from rlhf_core.cli import context_of, emit_json, open_registry
    from rlhf_eval.episodes import evaluate_episodes, job_of
    from rlhf_eval.selectors import parse_selector
    from rlhf_eval.show import show
    from rlhf_eval.store import read

    ctx = context_of(open_registry(), seed=seed)
    job = job_of(
        ctx,
        environment,
        settings,
        model=model,
        dataset=dataset,
        reward=reward,
        max_tokens=max_tokens,
        temperature=temperature,
        samples=samples,
        limit=limit,
        selectors=tuple(parse_selector(text, ctx) for text in best_by),
    )
    folder, result = evaluate_episodes(job, ctx, out, lambda text: say(text, err=True))
    if as_json:
        emit_json({"folder": str(folder), "environment": environment, **result})
        return
    stored = read(folder)
    show(stored.title, result, stored.rows, failures)
    say(f"\nrows, report and pass rates: {folder}\n")
