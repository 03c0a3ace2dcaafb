"""`rlhf reward evaluate`. Nothing heavy is imported before it is called."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rlhf_plugin_reward_eval.evaluation import Report

PROBE_CHOICES = ("length", "hollow", "content", "batch", "turns", "none")


@click.command()
@click.option("--model", "folders", multiple=True, metavar="FOLDER", help="A reward model or ensemble. Repeatable.")
@click.option("--reward", "names", multiple=True, metavar="NAME", help="A reward component. Repeatable.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="[REWARD:]a.b=c",
    help="One setting of the reward; of "
    "several rewards, of the one whose name in the table stands before the colon. Repeatable.",
)
@click.option(
    "--pairs",
    "dataset",
    required=True,
    metavar="DATASET",
    help="Pairs: a file, a hub id, or pocket/assistant; our columns, RewardBench's or RM-Bench's.",
)
@click.option(
    "--split", type=click.Choice(("heldout", "train")), help="Default: held-out rows if there are any, else all."
)
@click.option(
    "--heldout-fraction",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    show_default=True,
    help="As in training: only the rows that it had set aside.",
)
@click.option("--limit", type=click.IntRange(2), metavar="N", help="Only the first N pairs.")
@click.option(
    "--responses",
    metavar="FILE",
    help="Responses with a gold score: rank correlation, and best-of-N where a prompt has several.",
)
@click.option("--gold", "column", metavar="COLUMN", help="Their gold score's column. Default: the dataset's own gold.")
@click.option("--gold-scale", type=(float, float), metavar="LOW HIGH", help="Refuse gold scores outside.")
@click.option(
    "--probe", "probes", multiple=True, type=click.Choice(PROBE_CHOICES), help="Only these. Repeatable; default: all."
)
@click.option("--probe-pairs", type=click.IntRange(2), default=200, show_default=True, help="Pairs that probes change.")
@click.option(
    "--max-missing",
    type=click.FloatRange(0, 1),
    default=0.1,
    show_default=True,
    help="Largest share of missing scores; above it the exit code is 1.",
)
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write everything as JSON.")
@click.option("--plots", type=click.Path(path_type=Path), metavar="FOLDER", help="Draw it (needs matplotlib).")
@click.option(
    "--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True, help="Of the resamples and probes."
)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def evaluate(**options: Any) -> None:
    """Test whether a reward is any good: accuracy, calibration, biases, agreement with others.

    \b
    rlhf reward evaluate --model runs/rm/final --pairs pocket/assistant
    rlhf reward evaluate --model runs/a/final --model runs/b/final --pairs pairs.jsonl --plots plots
    rlhf reward evaluate --reward verifier --pairs pairs.jsonl --responses graded.jsonl --gold score --output out.json
    """

    given = SimpleNamespace(**options)
    report = _measure(given)
    _finish(report, given)


def _measure(given: Any) -> Report:
    """Check everything, then load the rewards and measure them; ``given`` is what the command line says."""
    from rlhf_core.cli import context_of, open_registry
    from rlhf_core.models import use_matmul_backend
    from rlhf_plugin_reward_eval.cases import read_cases
    from rlhf_plugin_reward_eval.evaluation import PROBES, Settings, measure_rewards
    from rlhf_plugin_reward_eval.plots import check_plots
    from rlhf_plugin_reward_eval.responses import gold_of_texts, read_responses, with_answers
    from rlhf_plugin_reward_eval.select_rewards import check_options, select_rewards

    check_options(given.output, given.column, given.gold_scale, given.responses)
    if given.plots is not None:
        check_plots(given.plots)
    rows = {"name": given.dataset, "heldout_fraction": given.heldout_fraction}
    registry = open_registry()
    rewards = select_rewards(registry, given.folders, given.names, given.settings)
    datasets = context_of(registry, seed=given.seed, dataset=rows).datasets
    cases = read_cases(
        datasets,
        given.split or ("heldout" if given.heldout_fraction else None),
        given.limit,
        Path(given.dataset).parent,
    )
    graded = read_responses(given.responses, given.column, given.gold_scale, datasets) if given.responses else []
    graded = with_answers(graded, cases.pairs)
    contexts = {name: context_of(registry, seed=given.seed, dataset=rows, reward=c) for name, c in rewards.items()}
    for name, config in rewards.items():
        config.preflight(contexts[name])
    gold = None if graded else gold_of_texts(datasets, given.dataset)
    use_matmul_backend("auto")
    probes = tuple(p for p in given.probes if p != "none") if given.probes else PROBES
    measured = Settings(probes, given.probe_pairs, given.max_missing, given.seed)
    return measure_rewards(rewards, contexts, cases, graded, measured, gold)


def _finish(report: Report, given: Any) -> None:
    from rlhf_core.cli import emit_json
    from rlhf_core.data import write_json
    from rlhf_plugin_reward_eval.plots import draw
    from rlhf_plugin_reward_eval.printing import show

    files = draw(report, given.plots) if given.plots is not None else []
    if given.output is not None:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        write_json(given.output, report.as_json())
        files = [given.output, *files]
    if given.as_json:
        emit_json(report.as_json())
        return
    show(report)
    for path in files:
        click.echo(f"written: {path}")
