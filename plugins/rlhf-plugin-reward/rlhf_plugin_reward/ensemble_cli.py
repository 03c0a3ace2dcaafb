"""`rlhf reward ensemble`: train an ensemble apart from any run, into a folder of the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command()
@click.option("--model", default="pocket", show_default=True, metavar="M", help="Trunk of the members.")
@click.option("--dataset", default="pocket/assistant", show_default=True, metavar="D", help="Preference pairs.")
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="FOLDER", help="The ensemble.")
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="One setting of the ensemble. Repeatable.")
@click.option(
    "--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True, help="Heads and bootstrap samples."
)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def ensemble(model: str, dataset: str, output: Path, settings: tuple[str, ...], seed: int, as_json: bool) -> None:
    """Train an ensemble of reward models on preference pairs.

    \b
    rlhf reward ensemble --dataset pairs.jsonl --model runs/sft/final --set members=5 --output runs/ensemble
    rlhf train --algo grpo --reward ensemble --set reward.path=runs/ensemble
    """
    from rlhf_core.cli import check_output, context_of, emit_json, open_registry
    from rlhf_core.config import ConfigError, parse_settings
    from rlhf_core.distributed import LocalStrategy
    from rlhf_core.models import ModelConfig, resolve_model, use_matmul_backend

    registry = open_registry()
    config: Any = registry.config("reward", "ensemble", parse_settings(settings))
    if config.path is not None:
        raise ConfigError("path names a trained ensemble", fix="leave it out: a new one goes to --output")
    if (output / "ensemble.json").exists():
        raise ConfigError(f"--output {output} holds an ensemble", fix="choose another folder")
    check_output(output, folder=True)
    resolve_model(model)
    base = config.base_model or ModelConfig(path=model)
    ctx = context_of(registry, seed=seed, dataset={"name": dataset}, model=base)
    use_matmul_backend("auto")
    from rlhf_plugin_reward.ensemble import train_ensemble, training_pairs

    train, heldout = training_pairs(config, ctx)
    strategy = LocalStrategy(ctx.device)
    train_ensemble(config, base, train, heldout, seed, output, lambda text: click.echo(text, err=True), strategy)
    with ctx.open("reward", config.model_copy(update={"path": str(output)})) as reward:
        quality = reward.quality()
    result = {"folder": str(output), "train_pairs": len(train), "heldout": quality}
    if as_json:
        emit_json(result)
    else:
        of_ensemble = quality["ensemble"]
        click.echo(f"held-out accuracy {of_ensemble['accuracy']:.1%} on {quality['pairs']} pairs; kept in {output}")
