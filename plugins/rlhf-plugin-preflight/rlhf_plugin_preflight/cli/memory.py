"""`rlhf memory`: what a run would hold in memory, before anything is downloaded or started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from rlhf_core.cli.options import open_plugins, resolve_options, run_options
from rlhf_core.config import ConfigError

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext, RunConfig
    from rlhf_plugin_preflight.memory.splits import Question

OWNERS = {"hsdp": "fsdp", "fsdp": "fsdp", "single": "auto"} | dict.fromkeys(("zero1", "zero2", "zero3"), "deepspeed")
"""Layout -> the strategy that has it, where it is called otherwise."""


@click.group()
def memory() -> None:
    """Plan what a run needs."""


@memory.command()
@run_options
@click.option("--device-memory", metavar="SIZE", help="Of each card, such as 80GiB; without it: this machine's.")
@click.option(
    "--host-memory",
    metavar="SIZE",
    help="Main memory of each machine, such as 1TiB; without it: this machine's, unless --device-memory is given.",
)
@click.option(
    "--strategy",
    metavar="NAME",
    help="single, ddp, fsdp, hsdp, zero1, zero2, zero3, fsdp_offload, zero1_offload, zero2_offload, zero3_offload, "
    "zero3_offload_moments; without it the run's own, as --set strategy=NAME gives it.",
)
@click.option(
    "--ranks", "--nproc", type=click.IntRange(1), default=1, show_default=True, help="Cards, or processes on the CPU."
)
@click.option(
    "--ranks-per-node", type=click.IntRange(1), help="HSDP shards within a node; default: strategy.shard_size, or 8."
)
@click.option("--tensor", type=click.IntRange(1), default=1, help="Ranks that share every layer: an estimate.")
@click.option(
    "--pipeline", type=click.IntRange(1), default=1, help="Groups of layers on ranks of their own: an estimate."
)
@click.option("--prompt-tokens", type=click.IntRange(1), help="Of every prompt, instead of the data's.")
@click.option("--reply-tokens", type=click.IntRange(1), help="Of every reply that is learned from, likewise.")
@click.option(
    "--table",
    "as_table",
    is_flag=True,
    help="Weights, gradients and moments of every published shape instead: ours beside the textbook's 18 bytes.",
)
@click.option(
    "--splits",
    "as_splits",
    is_flag=True,
    help="Ways to use --ranks cards instead: how many train, how many serve vLLM, what each holds, and the commands.",
)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def plan(
    files: tuple[str, ...],
    settings: tuple[str, ...],
    device_memory: str | None,
    host_memory: str | None,
    strategy: str | None,
    ranks: int,
    ranks_per_node: int | None,
    tensor: int,
    pipeline: int,
    prompt_tokens: int | None,
    reply_tokens: int | None,
    as_table: bool,
    as_splits: bool,
    as_json: bool,
    **names: Any,
) -> None:
    """Say what a run holds per rank in each phase, and whether it fits.

    The model may be a folder with config.json alone, a hub id, or a published shape by name; no weights are needed.

    \b
    rlhf memory plan --algo grpo --model pocket
    rlhf memory plan --algo sft --model llama-2-7b --device-memory 80GiB
    rlhf memory plan --algo ppo --model shape:layers=24,hidden=2048,heads=16,vocab=32000 --ranks 8
    rlhf memory plan --algo grpo --model qwen3-0.6b --device-memory 80GiB --ranks 4 --splits
    rlhf memory plan --table
    """
    if as_table:
        states(as_json)
        return
    from rlhf_core.cli import emit_json
    from rlhf_core.config import BuildContext
    from rlhf_plugin_preflight.cli.memory_table import print_plan
    from rlhf_plugin_preflight.memory.amounts import read_amount
    from rlhf_plugin_preflight.memory.plan import requested_placement
    from rlhf_plugin_preflight.memory.report import make_report

    limit = None if device_memory is None else read_amount(device_memory)
    host = None if host_memory is None else read_amount(host_memory)
    registry, _ = open_plugins()
    if strategy and any(item.startswith("strategy.") for item in settings):  # they are that strategy's settings
        settings = (f"strategy.name={OWNERS.get(strategy.split('_')[0], strategy)}", *settings)
    config = resolve_options(registry, files, settings, names).config.with_precision()
    ctx = BuildContext(config=config, registry=registry, seed=config.seed, world_size=ranks // (tensor * pipeline) or 1)
    if hasattr(config.trainer, "check_precision"):
        config.trainer.check_precision(ctx)
    placement = requested_placement(ctx, strategy, ranks, ranks_per_node, tensor, pipeline)
    if as_splits:
        options, other = (files, settings, names), strategy is not None or tensor * pipeline > 1
        question = split_question(ctx, options, (limit, host, prompt_tokens), ranks, ranks_per_node, other)
        splits(ctx, options, question, as_json)
        return
    report = make_report(ctx, placement, limit, prompt_tokens, reply_tokens, host, ranks_per_node)
    if as_json:
        emit_json(report.as_json())
    else:
        print_plan(report)
    if report.engine_refusal is not None:
        raise report.engine_refusal


def states(as_json: bool) -> None:
    """Print the states of every published shape."""
    from rlhf_core.cli import emit_json, table
    from rlhf_plugin_preflight.memory.states import NOTE, OURS, TEXTBOOK, states_of, table_of

    rows = states_of()
    if as_json:
        emit_json({"bytes_per_parameter": {"ours": OURS, "textbook": TEXTBOOK}, "models": [r.as_json() for r in rows]})
        return
    headers, cells = table_of(rows)
    table(headers, cells)
    click.echo(f"\n{NOTE}")


def splits(
    ctx: BuildContext,
    options: tuple[Sequence[str], Sequence[str], Mapping[str, Any]],
    question: Question,
    as_json: bool,
) -> None:
    """Print every way to use the cards; ``options`` are the run's files, settings and names."""
    from rlhf_core.cli import emit_json
    from rlhf_plugin_preflight.cli.splits_table import print_splits
    from rlhf_plugin_preflight.memory.splits import propose

    files, settings, names = options

    def resolve(more: Sequence[str]) -> RunConfig:
        return resolve_options(ctx.registry, files, [*settings, *more], names).config

    found = propose(ctx, resolve, question)
    if as_json:
        emit_json({"cards": question.cards, "splits": [split.as_json(question.cards) for split in found]})
    else:
        print_splits(ctx, found, question)


def split_question(
    ctx: BuildContext,
    options: tuple[Sequence[str], Sequence[str], Mapping[str, Any]],
    sizes: tuple[int | None, int | None, int | None],
    cards: int,
    per_machine: int | None,
    other: bool,
) -> Question:
    """What ``--splits`` asks; ``sizes``: bytes of a card and of main memory, tokens of a prompt; ``other``: a layout of
    the training cards is asked for. A shape has no weights: the model that the files name is left to them.

    Raises:
        ConfigError: one card, no size of a card, or a layout that no option of a run makes.
    """
    from rlhf_plugin_preflight.memory.shapes import is_shape
    from rlhf_plugin_preflight.memory.splits import Question

    device, host, prompt = sizes
    if cards < 2:
        raise ConfigError("one card cannot be split", fix="--ranks 8, or leave out --splits")
    if device is None:
        raise ConfigError("--splits plans for cards of a size", fix="--device-memory 80GiB")
    if getattr(ctx.config.strategy, "tensor_parallel", 1) > 1:
        raise ConfigError(
            "--splits with strategy.tensor_parallel",
            why="it tries numbers of cards that cannot divide each layer",
            fix="leave one of them out",
        )
    if other:
        raise ConfigError(
            "--splits takes the run's own strategy",
            why="its commands have to be ones that a run takes",
            fix="--set strategy=fsdp instead of --strategy, --tensor and --pipeline",
        )
    files, settings, names = options
    model, given = ctx.config.model.path, dict(names)
    if is_shape(model):
        model = resolve_options(ctx.registry, files, settings, {**names, "model": None}).config.model.path
        is_named = bool(files) and not is_shape(model)
        model, given["model"] = (model, None) if is_named else ("MODEL", "MODEL")
    words = [word for file in files for word in ("--config", file)]
    for name, value in given.items():
        if value is not None and value is not False:
            flag = "--" + {"environment": "env"}.get(name, name).replace("_", "-")
            words += [flag] if value is True else [flag, str(value)]
    words += [word for setting in settings for word in ("--set", setting)]
    return Question(cards, per_machine or 8, device, host, prompt, model, words)
