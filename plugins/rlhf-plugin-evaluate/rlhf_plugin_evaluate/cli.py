"""`rlhf evaluate policies`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlhf_plugin_evaluate.comparison import Comparison
    from rlhf_plugin_evaluate.responses import Measuring


@click.command()
@click.option("--baseline", required=True, metavar="M", help="Model or run that the others are compared with.")
@click.option("--policy", "others", multiple=True, metavar="NAME=M", help="A model or run. Repeatable.")
@click.option("--dataset", default="pocket/assistant", show_default=True, metavar="D", help="Where prompts come from.")
@click.option(
    "--split",
    type=click.Choice(("heldout", "train")),
    default="heldout",
    show_default=True,
    help="Which of its prompts.",
)
@click.option("--prompts", "count", type=click.IntRange(2), default=200, show_default=True, help="How many.")
@click.option("--reward-model", "folder", metavar="FOLDER", help="A reward model or an ensemble of them.")
@click.option("--reward", metavar="NAME", help="A reward component, for example verifier.")
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="One setting of the reward. Repeatable.")
@click.option("--judge", metavar="NAME", help="A judge component; each pair is shown in both orders.")
@click.option("--judge-set", "judge_settings", multiple=True, metavar="a.b=c", help="One of its settings. Repeatable.")
@click.option(
    "--reference",
    default="baseline",
    show_default=True,
    metavar="M",
    help="KL is measured from it: a model, baseline or none.",
)
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True, help="Most tokens to sample.")
@click.option("--temperature", type=click.FloatRange(0), default=1.0, show_default=True, help="0 is greedy (no KL).")
@click.option(
    "--prompt-format",
    type=click.Choice(("auto", "chat", "raw")),
    default="auto",
    show_default=True,
    help="Chat template, plain text, or the template if there is one.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Decides every completion.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FOLDER",
    help="Rows and result.json; the same command goes on where it stopped.",
)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def policies(
    baseline: str,
    others: tuple[str, ...],
    dataset: str,
    split: str,
    count: int,
    folder: str | None,
    reward: str | None,
    settings: tuple[str, ...],
    judge: str | None,
    judge_settings: tuple[str, ...],
    reference: str,
    max_tokens: int,
    temperature: float,
    prompt_format: str,
    seed: int,
    out: Path,
    as_json: bool,
) -> None:
    """Compare policies with a baseline: win rates, plain and length-controlled, rewards, KL from the reference.

    \b
    rlhf evaluate policies --baseline pocket --policy dpo=runs/dpo --out runs/compare
    rlhf evaluate policies --baseline runs/sft --policy runs/ppo --policy runs/grpo --reward-model RM --out runs/compare
    """
    from rlhf_core.api import ModelConfig
    from rlhf_core.cli.toolbox import context_of, emit_json, open_registry, quiet_libraries, set_up_logging, table
    from rlhf_core.models.load import load_tokenizer
    from rlhf_core.runs.run_dir import check_writable
    from rlhf_plugin_evaluate import comparison as c
    from rlhf_plugin_evaluate import report

    set_up_logging()
    check_writable(out)
    registry = open_registry()
    named = c.named_policies(baseline, others)
    scorer = c.reward_of(registry, folder, reward, settings)
    asked = c.judge_of(registry, judge, judge_settings) if judge else None
    place = {"baseline": named[c.BASELINE], "none": None}.get(reference, reference)
    place = c.model_of(place) if place and temperature > 0 else None
    plan = c.Comparison(
        named,
        dataset,
        split,
        count,
        max_tokens,
        temperature,
        seed,
        prompt_format,
        place,
        c.dumped(scorer),
        c.dumped(asked),
        c.prints(named, place, scorer, asked),
    )
    ctx = context_of(
        registry, seed=seed, dataset={"name": dataset}, reward=scorer, model=ModelConfig(path=named[c.BASELINE])
    )
    prompts = c.prompts_of(ctx.datasets, split, count)
    c.comparable(scorer, asked, ctx.datasets, prompts)
    for chosen in (scorer, asked):
        if chosen is not None:
            chosen.preflight(ctx)
    quiet_libraries()
    for path in sorted({*named.values(), place} - {None}):
        load_tokenizer(ModelConfig(path=path))  # whether there is such a model, before the first one writes anything
    plan.claim(out)
    result = run(plan, ctx, ctx.datasets, prompts, scorer, asked, out)
    if as_json:
        emit_json(result)
        return
    table(*report.table(result))
    for line in report.gaps(result):
        click.echo(line)
    click.echo(f"\n{len(prompts)} prompts of {dataset} ({split}); rows and result.json in {out}")


def run(
    plan: Comparison, ctx: Any, datasets: Any, prompts: Sequence[Any], scorer: Any, asked: Any, out: Path
) -> dict[str, Any]:
    """Answer, score, judge, count; returns what ``result.json`` holds."""
    from dataclasses import asdict

    from rlhf_core.registry import check_component
    from rlhf_core.runs.atomic import write_json
    from rlhf_plugin_evaluate import judging, report
    from rlhf_plugin_evaluate.comparison import BASELINE

    built: list[Any] = []

    def make(kind: str, config: Any) -> Any:
        if config is None:
            return None
        built.append(config.build(ctx))
        check_component(kind, built[-1], config.name)
        return built[-1]

    try:
        shared = measuring(plan, datasets, prompts, make("reward", scorer), scorer)
        rows = {name: answers(plan, name, shared, out) for name in plan.policies}
        judge = make("judge", asked)
        result: dict[str, Any] = {"comparison": asdict(plan), "policies": {}}
        for name, own in rows.items():
            found = report.measure(own)
            if name != BASELINE:
                judged = None
                if judge is not None:
                    judged = judging.compare(
                        judge, prompts, own, rows[BASELINE], out / f"judge-{name}.jsonl", plan.seed, say
                    )
                    found["judge"] = judging.summary(judged)
                found["wins"] = report.against(own, rows[BASELINE], judged, plan.seed)
            result["policies"][name] = found
    finally:
        for one in built:
            getattr(one, "close", lambda: None)()
    write_json(out / "result.json", result)
    return result


def measuring(plan: Comparison, datasets: Any, prompts: Sequence[Any], reward: Any, scorer: Any) -> Measuring:
    """What all policies are measured with; loads the reference."""
    from rlhf_core.api import ModelConfig, SamplingParams
    from rlhf_core.models.load import load_policy
    from rlhf_plugin_evaluate.responses import Measuring

    reference = load_policy(ModelConfig(path=plan.reference)) if plan.reference else None
    sampling = SamplingParams(max_tokens=plan.max_tokens, temperature=plan.temperature)
    return Measuring(prompts, sampling, plan.seed, datasets, reward, scorer.name if scorer else "", reference)


def answers(plan: Comparison, name: str, shared: Measuring, out: Path) -> list[dict[str, Any]]:
    """The rows of one policy."""
    from rlhf_core.api import ModelConfig
    from rlhf_plugin_evaluate.responses import answer_all

    model = ModelConfig.model_validate({"path": plan.policies[name], "prompt_format": plan.prompt_format})
    return answer_all(name, model, shared, out / f"responses-{name}.jsonl", say)


def say(text: str) -> None:
    """Progress, to stderr."""
    click.echo(text, err=True)
