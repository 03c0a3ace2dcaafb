"""Passes over the data of a trainer that samples: ``trainer.epochs`` becomes ``trainer.steps`` in the plan."""

from __future__ import annotations

import math
from typing import Any

from rlhf_core.config import BuildContext, ConfigError, Registry, RunConfig
from rlhf_core.data import Datasets
from rlhf_core.runs.launch.rows import remote_sources


def with_steps(registry: Registry, config: RunConfig, *, dry_run: bool = False) -> RunConfig:
    """The run with as many steps as ``trainer.epochs`` passes take, the last one rounded up to a whole step.

    All sources' rows to train on make one pass; rows that are dropped later (too long, a curriculum) count too, and
    those that ``dynamic_sampling`` draws in addition do not. A batch makes ``rollouts.max_reads`` steps.

    Raises:
        UserError: ``trainer.steps`` is given too, or nobody may read the rows now.
    """
    trainer: Any = config.trainer
    if "steps" in trainer.model_fields_set:
        raise ConfigError(
            f"trainer.epochs {trainer.epochs:g} and trainer.steps {trainer.steps} cannot both be given",
            why="each says how long the run is; a run that goes on has its steps already",
            fix="leave one of them out",
        )
    if dry_run and remote_sources(config):
        raise ConfigError(
            "the steps of trainer.epochs are not known: the rows are at the hub",
            why="a dry run downloads nothing",
            fix="--set trainer.steps=N for the dry run, or download them: hf download NAME --repo-type dataset",
        )
    ctx = BuildContext(config=config, registry=registry, seed=config.seed, dry_run=dry_run)
    rows = sum(size["train"] for size in Datasets(config.dataset, ctx).sizes().values())
    each = trainer.prompts_per_step * getattr(trainer, "rollout_batches", 1)
    reads = trainer.rollouts.max_reads if hasattr(trainer, "rollouts") else 1
    steps = max(1, math.ceil(round(trainer.epochs * rows / each, 9))) * reads
    return config.model_copy(update={"trainer": trainer.model_copy(update={"steps": steps, "epochs": None})})
