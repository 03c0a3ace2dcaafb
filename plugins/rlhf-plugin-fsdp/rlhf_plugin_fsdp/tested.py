"""Which runs were compared with one process; all others are refused."""

from __future__ import annotations

from typing import Any

from rlhf_core.api import ConfigError, OnlineTrainerConfig

OFFLINE = ("sft", "dpo", "kto", "reward_model", "prm", "orm", "rubric_model")
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
