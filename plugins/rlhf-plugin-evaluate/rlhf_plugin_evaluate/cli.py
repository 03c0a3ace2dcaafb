"""`rlhf eval policies`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlhf_core.config import Registry
    from rlhf_core.data import Prompt
    from rlhf_plugin_evaluate.comparison import Comparison


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
    "--top-p",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Less than 1 cuts the tail off, and no KL is measured.",
)
@click.option(
    "--prompt-format",
    type=click.Choice(("auto", "chat", "raw")),
    default="auto",
    show_default=True,
    help="Chat template, plain text, or the template if there is one.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True, help="Decides every completion."
)
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
    top_p: float,
    prompt_format: str,
    seed: int,
    out: Path,
    as_json: bool,
) -> None:
    """Compare policies with a baseline: win rates, plain and length-controlled, rewards, KL from the reference.

    \b
    rlhf eval policies --baseline pocket --policy dpo=runs/dpo --out runs/compare
    rlhf eval policies --baseline runs/sft --policy runs/ppo --policy runs/grpo --reward-model RM --out runs/compare
    """
    from rlhf_core.cli import check_output, open_registry
    from rlhf_core.config import parse_settings
    from rlhf_plugin_evaluate import comparison
    from rlhf_plugin_evaluate.comparison import BASELINE

    check_output(out, folder=True)
    registry = open_registry()
    paths = comparison.named_policies(baseline, others)
    reward_config = comparison.reward_of(registry, folder, reward, settings)
    judge_config = registry.config("judge", judge, parse_settings(judge_settings)) if judge else None
    reference_path = comparison.reference_of(reference, paths[BASELINE]) if temperature > 0 and top_p == 1 else None
    plan = comparison.Comparison(
        policies=paths,
        dataset=dataset,
        split=split,
        prompts=count,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=None if top_p == 1 else top_p,
        seed=seed,
        prompt_format=prompt_format,
        reference=reference_path,
        reward=comparison.dumped(reward_config),
        judge=comparison.dumped(judge_config),
        weights=comparison.fingerprints(paths, reference_path, reward_config, judge_config),
    )
    ctx, prompts = prepare(registry, plan, reward_config, judge_config)
    plan.claim(out)
    result = run(plan, ctx, prompts, reward_config, judge_config, out)
    show(result, plan, out, as_json)


def prepare(
    registry: Registry, plan: Comparison, reward_config: Any, judge_config: Any
) -> tuple[Any, Sequence[Prompt]]:
    """(what components are built with, prompts), once everything is checked that can be before anything is written."""
    from rlhf_core.cli import context_of
    from rlhf_core.models import ModelConfig
    from rlhf_plugin_evaluate import comparison

    model = ModelConfig(path=plan.policies[comparison.BASELINE])
    ctx = context_of(registry, seed=plan.seed, dataset={"name": plan.dataset}, reward=reward_config, model=model)
    prompts = comparison.prompts_of(ctx.datasets, plan.split, plan.prompts)
    comparison.check_comparable(reward_config, judge_config, ctx.datasets, prompts)
    for config in (reward_config, judge_config):
        if config is not None:
            config.preflight(ctx)
    check_models(plan)
    for name, path in plan.policies.items():
        count, warning = ctx.datasets.seen_in_training(path, [p.id for p in prompts])
        if count:
            click.secho(f"warning: {name}: {warning}", fg="yellow", err=True)
    return ctx, prompts


def check_models(plan: Comparison) -> None:
    """Load every model's tokenizer, so that a model that is missing is named before the first one writes anything."""
    from rlhf_core.models import ModelConfig, load_tokenizer

    references = () if plan.reference is None else (plan.reference,)
    for path in sorted({*plan.policies.values(), *references}):
        load_tokenizer(ModelConfig(path=path))


def show(result: dict[str, Any], plan: Comparison, out: Path, as_json: bool) -> None:
    from rlhf_core.cli import emit_json, table
    from rlhf_plugin_evaluate import report

    if as_json:
        emit_json(result)
        return
    table(*report.table(result))
    for line in report.gaps(result):
        click.echo(line)
    count = result["policies"]["baseline"]["prompts"]
    click.echo(f"\n{count} prompts of {plan.dataset} ({plan.split}); rows and result.json in {out}")


def run(
    plan: Comparison, ctx: Any, prompts: Sequence[Prompt], reward_config: Any, judge_config: Any, out: Path
) -> dict[str, Any]:
    from rlhf_core.data import write_json
    from rlhf_core.models import ModelConfig, load_policy
    from rlhf_core.rollouts import SamplingParams
    from rlhf_plugin_evaluate.frontier import draw
    from rlhf_plugin_evaluate.report import side_by_side
    from rlhf_plugin_evaluate.responses import EvaluationSetup, answer_all

    with ExitStack() as stack:
        reward = stack.enter_context(ctx.open("reward", reward_config)) if reward_config else None
        reference = load_policy(ModelConfig(path=plan.reference)) if plan.reference else None
        if reference is not None:
            reference.run_on(ctx.device)
        sampling = SamplingParams(max_tokens=plan.max_tokens, temperature=plan.temperature, top_p=plan.top_p or 1.0)
        reward_name = reward_config.name if reward_config else ""
        setup = EvaluationSetup(prompts, sampling, plan.seed, ctx.datasets, reward, reward_name, reference, ctx.device)
        rows: dict[str, list[dict[str, Any]]] = {}
        for name, path in plan.policies.items():
            model = ModelConfig.model_validate({"path": path, "prompt_format": plan.prompt_format})
            rows[name] = answer_all(name, model, setup, out / f"responses-{name}.jsonl", say)
        judge = stack.enter_context(ctx.open("judge", judge_config)) if judge_config else None
        figures = {name: policy_figures(plan, name, rows, prompts, judge, out) for name in plan.policies}
    result = {"comparison": asdict(plan), "policies": figures}
    write_json(out / "result.json", result)
    draw(result, out / "frontier.svg")
    (out / "responses.md").write_text(side_by_side(rows), encoding="utf-8")
    return result


def policy_figures(
    plan: Comparison,
    name: str,
    rows: Mapping[str, list[dict[str, Any]]],
    prompts: Sequence[Prompt],
    judge: Any,
    out: Path,
) -> dict[str, Any]:
    from rlhf_plugin_evaluate import judging, report
    from rlhf_plugin_evaluate.comparison import BASELINE

    figures = report.measure(rows[name])
    if name == BASELINE:
        return figures
    judge_rows = None
    if judge is not None:
        file = out / f"judge-{name}.jsonl"
        judge_rows = judging.compare(judge, prompts, rows[name], rows[BASELINE], file, plan.seed, say)
        figures["judge"] = judging.summary(judge_rows)
    figures["wins"] = report.against(rows[name], rows[BASELINE], judge_rows, plan.seed)
    figures["per_nat"] = report.per_nat(rows[name], rows[BASELINE], plan.seed)
    return figures


def say(text: str) -> None:
    click.echo(text, err=True)
