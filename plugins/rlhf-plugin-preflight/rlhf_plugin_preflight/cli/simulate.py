"""`rlhf simulate`: seconds of a step on GPUs that are not at hand."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from rlhf_core.cli.options import open_plugins, resolve_options, run_options
from rlhf_core.config import ConfigError

if TYPE_CHECKING:
    from rlhf_core.config import RunConfig
    from rlhf_plugin_preflight.cost.step import Layout, Step, Work

HEADERS = (
    "GPUs",
    "rollout",
    "reward",
    "host",
    "forwards",
    "update",
    "sync",
    "step, s",
    "tokens/s/GPU",
    "utilisation",
    "idle",
)
HOST_S = 1.1e-4
"""Of a completion, with all traced: docs/bench/host_side.json, flat from 1,024 to 32,768 completions."""
ADAPTERS = 0.01
"""Share of the parameters that adapters are taken to be."""


@click.command()
@run_options
@click.option(
    "--gpu", metavar="NAME", default="h100", show_default=True, help="a100, h100, h200, h800, h20, b200, l40s."
)
@click.option("--gpus", metavar="N,...", default="1,8,64,512", show_default=True, help="Numbers of GPUs, one row each.")
@click.option(
    "--serve", type=click.FloatRange(0, 1, max_open=True), default=0.0, help="Share with vLLM servers; 0: none."
)
@click.option("--tensor", type=click.IntRange(1), default=1, help="GPUs of one vLLM.")
@click.option("--mean-tokens", type=click.FloatRange(1), help="Of a completion; default half of the longest.")
@click.option("--spread", type=click.FloatRange(0, 3), default=0.7, show_default=True, help="Of the log of the length.")
@click.option("--prompt-tokens", type=click.IntRange(1), default=512, show_default=True)
@click.option("--staleness", type=click.IntRange(0), help="Batches sampled ahead; default the run's, with servers.")
@click.option(
    "--sync-rate", metavar="SIZE", default="2GB", show_default=True, help="Written and read a second by servers' files."
)
@click.option("--reward-seconds", type=click.FloatRange(0), default=0.0, help="Of all rewards of a step.")
@click.option("--published", is_flag=True, help="The simulation beside step times that others published instead.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def simulate(
    files: tuple[str, ...],
    settings: tuple[str, ...],
    gpu: str,
    gpus: str,
    serve: float,
    tensor: int,
    mean_tokens: float | None,
    spread: float,
    prompt_tokens: int,
    staleness: int | None,
    sync_rate: str,
    reward_seconds: float,
    published: bool,
    as_json: bool,
    **names: Any,
) -> None:
    """Say what a step of an on-policy run would take on GPUs, by part: a simulation, not a measurement.

    The lengths decide: the longest completion bounds a step that samples and learns in turn. Memory is not looked at:
    rlhf memory plan. Of a mixture of experts it is a lower bound.

    \b
    rlhf simulate --algo grpo --model qwen3-8b --mean-tokens 300
    rlhf simulate --config configs/qwen3_8b_grpo_vllm_8gpu.yaml --model qwen3-8b --serve 0.5 --gpus 8,64,1024
    rlhf simulate --published
    """
    if published:
        show_published(as_json)
        return
    from rlhf_core.cli import emit_json, table
    from rlhf_plugin_preflight.cost.hardware import gpu_of, shape_of
    from rlhf_plugin_preflight.cost.published import FACTORS
    from rlhf_plugin_preflight.cost.step import simulate as simulated
    from rlhf_plugin_preflight.memory.amounts import read_amount

    registry, _ = open_plugins()
    config = resolve_options(registry, files, settings, names).config
    kind, work = gpu_of(gpu), work_of(config, mean_tokens, spread, prompt_tokens, reward_seconds)
    ahead = staleness if staleness is not None else int(getattr(config.trainer, "batches_ahead", 0)) if serve else 0
    layouts = [layout_of(count, serve, tensor, ahead, read_amount(sync_rate)) for count in counts_of(gpus)]
    shape = shape_of(config.model)
    steps = [(layout, simulated(shape, kind, work, layout, FACTORS)) for layout in layouts]
    if as_json:
        rows = [{"layout": dataclasses.asdict(layout), **dataclasses.asdict(step)} for layout, step in steps]
        emit_json({"gpu": gpu, "work": dataclasses.asdict(work), "simulated": True, "rows": rows})
        return
    click.echo(
        f"simulated: {config.trainer.name} of {config.model.path} on {gpu}, {work.completions:,} completions of "
        f"{work.lengths.mean:,.0f} tokens on average and at most {work.lengths.limit:,}\n"
    )
    table(HEADERS, [cells(layout, step) for layout, step in steps])
    if shape.experts:
        click.echo("\na mixture of experts: a lower bound (rlhf simulate --published)")


def show_published(as_json: bool) -> None:
    """Print the table of published step times."""
    from rlhf_core.cli import emit_json, table
    from rlhf_plugin_preflight.cost.published import HEADERS as HEAD
    from rlhf_plugin_preflight.cost.published import rows

    if as_json:
        emit_json({"rows": [{**dataclasses.asdict(row), "ratio": row.ratio} for row in rows()]})
    else:
        table(HEAD, [row.cells() for row in rows()])


def counts_of(text: str) -> list[int]:
    """Numbers of GPUs.

    Raises:
        ConfigError: they are not whole numbers of at least 1.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and 1 <= int(part) <= 1 << 17 for part in parts):
        raise ConfigError(f"--gpus '{text}' are not numbers of GPUs", fix="--gpus 1,8,64")
    return [int(part) for part in parts]


def layout_of(count: int, serve: float, tensor: int, staleness: int, sync_rate: float) -> Layout:
    """So many GPUs, of which a share serves in whole engines; one engine at least.

    Raises:
        ConfigError: nothing would train, or engines of several GPUs in the training processes.
    """
    from rlhf_plugin_preflight.cost.step import Layout

    if tensor > 1 and not serve:
        raise ConfigError(
            f"--tensor {tensor} needs servers", why="vLLM in a training process is on its GPU alone", fix="--serve 0.5"
        )
    served = max(tensor, round(count * serve / tensor) * tensor) if serve else 0
    if served and served >= count:
        raise ConfigError(
            f"of {count} GPUs {served} would serve, and none train",
            fix="larger --gpus, or smaller --serve and --tensor",
        )
    return Layout(count - served, served, tensor, staleness=staleness, sync_rate=sync_rate)


def work_of(config: RunConfig, mean: float | None, spread: float, prompt: int, reward_s: float) -> Work:
    """What a run's settings say of one step.

    Raises:
        ConfigError: the run samples nothing, or its lengths cannot be.
    """
    from rlhf_plugin_preflight.cost.rollout import Lengths
    from rlhf_plugin_preflight.cost.step import Work
    from rlhf_plugin_preflight.dry_run.look import keeps_reference

    trainer: Any = config.trainer
    if not config.samples_itself:
        raise ConfigError(f"{trainer.name} samples nothing", why="on-policy steps are simulated", fix="--algo grpo")
    limit = int(trainer.sampling.max_tokens)
    updates = int(getattr(trainer, "updates_per_step", 1))
    return Work(
        completions=trainer.rollout_batch_size,
        group=trainer.group_size,
        prompt=prompt,
        lengths=Lengths(limit / 2 if mean is None else mean, limit, spread),
        updates=updates,
        epochs=int(getattr(trainer, "epochs_per_rollout_batch", 1)),
        forwards=int(keeps_reference(config)) + int(updates > 1),
        recompute=config.model.gradient_checkpointing in (True, "offload"),
        trained=1.0 if config.model.lora is None else ADAPTERS,
        reward_s=reward_s,
        host_s=HOST_S * trainer.rollout_batch_size,
    )


def cells(layout: Layout, step: Step) -> list[str]:
    """A row of the table."""
    name = f"{layout.train} + {layout.serve}" if layout.serve else f"{layout.train}"
    parts = (step.rollout, step.reward, step.host, step.forwards, step.update, step.sync, step.seconds)
    shares = (f"{step.tokens_per_gpu:,.0f}", f"{100 * step.utilisation:.1f} %", f"{100 * step.idle:.0f} %")
    return [name, *(f"{seconds:.1f}" for seconds in parts), *shares]
