"""`rlhf data pairs`: preference pairs from a model's own answers, ranked by a reward or by the data's gold score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from rlhf_core.cli import check_output, chosen_reward, context_of, emit_json, load_sampler, open_registry
from rlhf_core.config import BuildContext, ComponentConfig, ConfigError, Registry, RlhfError
from rlhf_core.data import DatasetError, Datasets, Prompt
from rlhf_core.rollouts import Rollout


@click.command(context_settings={"show_default": True})
@click.option("--model", default="pocket", metavar="M", help="Model that answers.")
@click.option("--dataset", default="pocket/assistant", metavar="D", help="Prompts (training split).")
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="FILE", help="The pairs.")
@click.option("--reward", "name", metavar="NAME", help="Reward that ranks the answers, for example verifier.")
@click.option("--reward-model", "folder", metavar="FOLDER", help="A reward model or an ensemble of them instead.")
@click.option("--gold", is_flag=True, help="The data's own gold score instead, as a perfect annotator would.")
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="One setting of the reward. Repeatable.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Only the first N prompts.")
@click.option("--skip", type=click.IntRange(0), default=0, help="Leave out so many before them.")
@click.option("--n", type=click.IntRange(2), default=4, help="Answers to each prompt.")
@click.option("--max-tokens", type=click.IntRange(1), default=64, help="Of an answer.")
@click.option("--temperature", type=click.FloatRange(0, min_open=True), default=1.0)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, help="The same seed, the same answers.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def pairs(dataset: str, output: Path, as_json: bool, **options: Any) -> None:
    """Make preference pairs of a model's best and worst answer to each prompt.

    Prompts whose answers all score the same, or of which fewer than two have a score, give no pair and are counted.

    \b
    rlhf data pairs --model runs/sft/final --gold --output pairs.jsonl
    rlhf data pairs --model runs/sft/final --dataset pocket/arithmetic --reward verifier --output pairs.jsonl
    """
    from rlhf_plugin_datagen.filtering import write_rows
    from rlhf_plugin_datagen.outside import open_datasets

    registry = open_registry()
    check_output(output)
    datasets = open_datasets(registry, dataset, options["seed"])
    prompts = chosen_prompts(datasets, options["skip"], options["count"])
    chosen, ctx = ranking(registry, datasets, prompts, options)
    rollouts = sample(registry, prompts, options)
    values = score(chosen, ctx, prompts, rollouts, options["n"])
    rows, left_out = ranked(prompts, rollouts, values, options["n"])
    if not rows:
        why = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in left_out.items())
        raise RlhfError(
            f"no pair was made of {len(prompts)} prompts", why=why, fix="raise --n, or rank by another reward"
        )
    write_rows(output, rows)
    result = {
        "output": str(output),
        "prompts": len(prompts),
        "pairs": len(rows),
        "left_out": dict(left_out),
        "mean_score": mean([value for value in values if value is not None]),
        "mean_margin": mean([row["score_chosen"] - row["score_rejected"] for row in rows]),
    }
    emit_json(result) if as_json else show(result)


def chosen_prompts(datasets: Datasets, skip: int, count: int | None) -> Sequence[Prompt]:
    every = datasets.prompts("train")
    prompts = every[skip : None if count is None else skip + count]
    if not prompts:
        raise DatasetError(f"--skip {skip} leaves none of {len(every)} prompts", fix="lower it")
    return prompts


def ranking(
    registry: Registry, datasets: Datasets, prompts: Sequence[Prompt], options: dict[str, Any]
) -> tuple[ComponentConfig | None, BuildContext]:
    """The reward that ranks answers, checked, and what it is built with; None for the gold score."""
    ways = [way for way in ("name", "folder", "gold") if options[way]]
    if len(ways) != 1:
        raise ConfigError("say by what answers are ranked", fix="one of --reward NAME, --reward-model FOLDER, --gold")
    if options["gold"]:
        if options["settings"]:
            raise ConfigError("--set has no effect with --gold", fix="leave it out")
        if not all(datasets.has_gold(prompt) for prompt in prompts):
            raise ConfigError("the dataset has no gold score", fix="--reward NAME, or --reward-model FOLDER")
        return None, context_of(registry, seed=options["seed"]).with_(datasets=datasets)
    chosen = chosen_reward(registry, options["folder"], options["name"], options["settings"])
    ctx = context_of(registry, seed=options["seed"], reward=chosen)
    ctx = ctx.with_(datasets=datasets, config=ctx.config.model_copy(update={"dataset": datasets.settings}))
    chosen.preflight(ctx)
    return chosen, ctx


def sample(registry: Registry, prompts: Sequence[Prompt], options: dict[str, Any]) -> list[Rollout]:
    """``n`` answers to each prompt, prompt by prompt."""
    from rlhf_core.models import ModelConfig
    from rlhf_core.rollouts import SamplingParams

    params = SamplingParams(max_tokens=options["max_tokens"], temperature=options["temperature"])
    sampler = load_sampler(registry, ModelConfig(path=options["model"]))
    return sampler.sample(prompts, params, options["n"], options["seed"])


def score(
    chosen: ComponentConfig | None, ctx: BuildContext, prompts: Sequence[Prompt], rollouts: Sequence[Rollout], n: int
) -> list[float | None]:
    from rlhf_core.rewards import score_samples

    of_rollout = [prompt for prompt in prompts for _ in range(n)]
    samples = [r.sample(p) for p, r in zip(of_rollout, rollouts, strict=True)]
    if chosen is None:
        golds = [ctx.datasets.gold(one) for one in samples]
        return [None if gold is None else float(gold["value"]) for gold in golds]
    with ctx.open("reward", chosen) as reward:
        scores = score_samples(reward, samples, f"reward '{chosen.name}'")
    return [None if not one.ok or one.value is None else float(one.value) for one in scores]


def ranked(
    prompts: Sequence[Prompt], rollouts: Sequence[Rollout], values: Sequence[float | None], n: int
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """A row per prompt whose best and worst (of equals the first) differ; why others have none. No ``margin``."""
    rows: list[dict[str, Any]] = []
    left_out: Counter[str] = Counter()
    for at, prompt in enumerate(prompts):
        answers = range(at * n, at * n + n)
        scored = [(value, i) for i in answers if (value := values[i]) is not None]
        if len(scored) < 2:
            left_out["fewer_than_two_scores"] += 1
            continue
        best, worst = max(scored, key=lambda one: one[0]), min(scored, key=lambda one: one[0])
        texts = rollouts[best[1]].text, rollouts[worst[1]].text
        if best[0] == worst[0] or not all(text.strip() for text in texts):
            left_out["equal_scores" if best[0] == worst[0] else "empty_answer"] += 1
            continue
        rows.append(
            {
                "id": prompt.id,
                "prompt": [dict(message) for message in prompt.messages],
                "chosen": texts[0],
                "rejected": texts[1],
                "score_chosen": best[0],
                "score_rejected": worst[0],
            }
        )
    return rows, left_out


def mean(values: Sequence[float]) -> float | None:
    """None of nothing."""
    return sum(values) / len(values) if values else None


def show(result: dict[str, Any]) -> None:
    counted = "".join(f"; {count} {why.replace('_', ' ')}" for why, count in result["left_out"].items())
    click.echo(f"{result['pairs']} pairs from {result['prompts']} prompts{counted}, in {result['output']}")
