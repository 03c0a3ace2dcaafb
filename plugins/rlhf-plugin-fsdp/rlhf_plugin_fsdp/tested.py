"""Which runs were compared with one process; all others are refused."""

from __future__ import annotations

from typing import Any

from rlhf_core.api import ConfigError, OnlineTrainerConfig

OFFLINE = ("sft", "dpo", "reward_model")
"""Besides every algorithm of the core's own on-policy trainer (grpo and its variants, ppo)."""


def check_run(run: Any) -> None:
    """Refuse a run whose result on shards nobody compared, or that would fail at its end.

    Args:
        run: the configuration.

    Raises:
        ConfigError: names the algorithm or the setting.
    """
    trainer = run.trainer
    if not isinstance(trainer, OnlineTrainerConfig) and trainer.name not in OFFLINE:
        raise ConfigError(
            f"strategy fsdp does not train {trainer.name}",
            why=f"on shards only {', '.join(OFFLINE)}, ppo, grpo and its variants were compared with one process",
            fix="--set strategy=ddp",
        )
    trunk = getattr(trainer, "train_trunk", "full")
    if trunk != "full":
        raise ConfigError(
            f"strategy fsdp does not train a reward model with trainer.train_trunk={trunk}",
            why="adapters are merged, and features of a frozen trunk kept, from whole weights",
            fix="--set trainer.train_trunk=full, or --set strategy=ddp",
        )
    if trainer.name == "reward_model" and run.model.lora is not None:
        raise ConfigError(
            "strategy fsdp does not train a reward model with model.lora",
            why="its adapters are merged from whole weights when it is written",
            fix="leave out model.lora, or --set strategy=ddp",
        )
