"""Which versions and which runs were compared with one process; all others are refused."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from rlhf_core.config import ConfigError
from rlhf_core.rl import OnlineTrainerConfig

if TYPE_CHECKING:
    from rlhf_plugin_deepspeed.config import DeepSpeedConfig

TESTED = ("0.19.8",)
"""Versions of DeepSpeed that the tests were run with."""
OFFLINE = ("sft", "dpo", "kto", "reward_model", "prm", "orm", "rubric_model")
"""Besides every algorithm of the core's own on-policy trainer (grpo and its variants, ppo)."""


def check_installation(config: DeepSpeedConfig) -> None:
    """Refuse a machine without a DeepSpeed that goes with the settings."""
    if missing():
        raise ConfigError(
            f"strategy deepspeed cannot run here: {missing()}",
            fix=f"DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed=={TESTED[-1]}, or --set strategy=fsdp",
        )
    installed = version("deepspeed")
    if installed.split("+")[0] not in TESTED and not config.allow_untested:
        raise ConfigError(
            f"this strategy was not tested with DeepSpeed {installed} (tested: {', '.join(TESTED)})",
            why="it reads gradients and moments from places that differ between versions",
            fix=f"pip install deepspeed=={TESTED[-1]}, or --set strategy.allow_untested=true",
        )
    wanted, chosen = device_type(config), os.environ.get("DS_ACCELERATOR")
    if chosen not in (None, wanted):
        raise ConfigError(
            f"DS_ACCELERATOR={chosen} with a run on {wanted}",
            why="DeepSpeed would keep its tensors on another device than the run",
            fix=f"unset DS_ACCELERATOR, or --set strategy.device={chosen if chosen in ('cpu', 'cuda') else wanted}",
        )


def missing() -> str:
    """What is not installed; "" if nothing is missing."""
    try:
        version("deepspeed")
    except PackageNotFoundError:
        return "DeepSpeed is not installed"
    return ""


def device_type(config: DeepSpeedConfig) -> str:
    import torch

    return "cpu" if config.device == "cpu" or not torch.cuda.is_available() else "cuda"


def check_run(run: Any, config: DeepSpeedConfig) -> None:
    """Refuse a run whose result nobody compared, or that would fail at its end."""
    trainer = run.trainer
    if not isinstance(trainer, OnlineTrainerConfig) and trainer.name not in OFFLINE:
        raise ConfigError(
            f"strategy deepspeed does not train {trainer.name}",
            why=f"only {', '.join(OFFLINE)}, ppo, grpo and its variants were compared with one process",
            fix="--set strategy=ddp",
        )
    if run.model.quantize is not None:
        raise ConfigError(
            f"strategy deepspeed cannot divide a model with model.quantize {run.model.quantize}",
            why="weights of 4 bits are packed, with scales that belong to whole blocks",
            fix="--set strategy=ddp, or leave model.quantize out",
        )
    if trainer.optimizer.cuts != "elements":
        raise ConfigError(
            f"strategy deepspeed cannot divide optimizer {trainer.optimizer.name}",
            why="ZeRO lays weights end to end and cuts them anywhere; this optimizer steps weights with their shape",
            fix="--set trainer.optimizer.name=adamw, or --set strategy=ddp",
        )
    if getattr(trainer, "precision", "") == "fp16":
        raise ConfigError(
            "strategy deepspeed with trainer.precision=fp16",
            why="DeepSpeed makes its steps itself, and the scale of the loss would not be taken out of them",
            fix="--set trainer.precision=bf16, or --set strategy=ddp",
        )
    if run.model.dtype != "float32":
        raise ConfigError(
            f"strategy deepspeed with model.dtype={run.model.dtype}",
            why="weights are stepped in float32; a copy of another type was not compared",
            fix="--set model.dtype=float32"
            + (", and trainer.precision=bf16 to compute in bfloat16" if hasattr(trainer, "precision") else ""),
        )
    if config.stage == 3 and isinstance(trainer, OnlineTrainerConfig) and trainer.kl.sync_every:
        raise ConfigError(
            "strategy deepspeed with stage 3 and trainer.kl.sync_every",
            why="copying the reference shard by shard is not implemented",
            fix="--set strategy.stage=2, --set strategy=fsdp, or leave out trainer.kl.sync_every",
        )
    if config.stage == 3 and isinstance(trainer, OnlineTrainerConfig) and trainer.batches_ahead and run.model.lora:
        raise ConfigError(
            "strategy deepspeed with stage 3, model.lora and rollouts ahead",
            why="the sampling copy shares the base weights, and stage 3 shards them in place",
            fix="--set strategy.stage=2, or --set trainer.rollouts.max_staleness=0",
        )
