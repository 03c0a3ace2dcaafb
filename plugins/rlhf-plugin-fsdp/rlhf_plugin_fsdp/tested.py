"""Which runs were compared with one process; all others are refused."""

from __future__ import annotations

from typing import Any

from rlhf_core.config import ConfigError
from rlhf_core.rl import OnlineTrainerConfig

OFFLINE = ("sft", "dpo", "kto", "reward_model", "prm", "orm", "rubric_model")
"""Besides every algorithm of the core's own on-policy trainer (grpo and its variants, ppo)."""
NETS = ("reward_model", "prm", "orm", "rubric_model")
"""Those of them that train a transformer under a head of their own, which is float32."""


def check_run(run: Any) -> None:
    """Refuse a run whose result on shards nobody compared, or that would fail at its end.

    Args:
        run: the configuration.
    """
    trainer = run.trainer
    if not isinstance(trainer, OnlineTrainerConfig) and trainer.name not in OFFLINE:
        raise ConfigError(
            f"strategy fsdp does not train {trainer.name}",
            why=f"on shards only {', '.join(OFFLINE)}, ppo, grpo and its variants were compared with one process",
            fix="--set strategy=ddp",
        )
    full = getattr(trainer, "train_trunk", "full") == "full" and run.model.lora is None
    if run.model.dtype != "float32" and trainer.name in NETS and full:
        raise ConfigError(
            f"strategy fsdp with model.dtype={run.model.dtype} and {trainer.name}, all weights",
            why="its head is float32, and lies in one unit with the embedding: FSDP2 divides a unit of one type only",
            fix="--set model.dtype=float32, --set trainer.train_trunk=lora, or --set strategy=ddp",
        )
