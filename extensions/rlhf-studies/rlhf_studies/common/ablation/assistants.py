"""Ablations of assistants under learned rewards: the pocket world, whose gold score is hidden from training, and a
model of 1.7 billion weights on human pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rlhf_studies.common import smoke
from rlhf_studies.common.ablation.worlds import WorldAblation
from rlhf_study.ablation.config import Settings

GOLD, HOLLOW, WORDS = "eval/gold/value", "eval/gold/hollow", "eval/gold/words"
PROXY, WINS = "eval/reward/mean", "summary/gold_win_rate"
ADAPTERS = "summary/reports/lora"
"""Parameters of the adapters, of 4 bytes each on disk; a whole model reports none."""
ALSO = (PROXY, "kl", HOLLOW, WORDS)
POCKET: Settings = {
    "dataset": {"name": "pocket/assistant"},
    "reward": {"name": "ensemble"},
    "trainer": {
        "name": "ppo",
        "rollout_batch_size": 128,
        "group_size": 4,
        "micro_batch_size": 64,
        "sampling": {"max_tokens": 48},
        "optimizer": {"learning_rate": 3e-4, "warmup_steps": 2},
        "kl": {"track": True},
        "eval_every": 10,
        "eval_samples": 200,
        "checkpoint_every": 0,
        "trace_prompts": 0,
    },
}
FOUR_UPDATES: Settings = {"trainer": {"train_batch_size": 64, "epochs_per_rollout_batch": 2}}
ROWS: Settings = {
    "dataset": {"name": "pocket/assistant"},
    "trainer": {
        "batch_size": 32,
        "micro_batch_size": 32,
        "eval_every": 10,
        "optimizer": {"learning_rate": 1e-4, "warmup_steps": 2},
    },
}
"""Of trainers that learn from rows."""
FILES: Settings = {**ROWS, "dataset": {"name": "jsonl", "heldout_path": "@heldout"}}
"""A study's own files in place of the shipped rows; each arm names its own."""
SAMPLED: Settings = {"sample_prompts": 200, "sampling": {"max_tokens": 48}}
JUDGE: Settings = {"trainer": {"name": "reward_model", "max_steps": 128}}
"""A reward model made before the arms."""
SMOKE_BEFORE: Settings = {"trainer": {"max_steps": 1, "eval_samples": 8}}
PAIRS = {"name": "hub", "path": "Anthropic/hh-rlhf"}
REAL: Settings = {
    "model": {"path": "HuggingFaceTB/SmolLM2-1.7B-Instruct"},
    "dataset": PAIRS,
    "reward": {
        "name": "ensemble",
        "base_model": {"path": "HuggingFaceTB/SmolLM2-1.7B-Instruct"},
        "pairs": PAIRS,
    },
    "trainer": {
        "name": "ppo",
        "rollout_batch_size": 256,
        "group_size": 4,
        "micro_batch_size": 8,
        "sampling": {"max_tokens": 256},
        "optimizer": {"learning_rate": 1e-6, "warmup_steps": 10},
        "eval_every": 20,
        "eval_samples": 256,
        "checkpoint_every": 100,
    },
}
REAL_ROWS: Settings = {**ROWS, "model": REAL["model"], "dataset": PAIRS}
BEFORE: Mapping[str, Settings] = {"pocket": ROWS, "real": REAL_ROWS}


def ranks(learning_rate: float) -> dict[str, Settings]:
    """All weights, and adapters of three ranks at a learning rate of their own."""
    rate: Settings = {"trainer": {"optimizer": {"learning_rate": learning_rate}}}
    return {"full": {}, **{f"r={r}": {"model": {"lora": {"r": r}}, **rate} for r in (16, 8, 1)}}


def trainers(online: Settings, rows: Settings) -> dict[str, Settings]:
    """DPO, PPO and GRPO, the latter two with the same small KL penalty."""
    ours = {**online["trainer"], **FOUR_UPDATES["trainer"]}
    return {
        "dpo": {**rows["trainer"], **SAMPLED, "name": "dpo"},
        "ppo": {**ours, "name": "ppo", "kl": {"coefficient": 0.02, "controller": "fixed"}},
        "grpo": {**ours, "name": "grpo", "kl": {"coefficient": 0.02}},
    }


class AssistantAblation(WorldAblation):
    """Assistants under an ensemble of reward models."""

    frontier: ClassVar[tuple[str, str] | None] = ("kl", GOLD)
    worlds: ClassVar[Mapping[str, Settings]] = {"pocket": POCKET, "real": REAL}
    metric: str = GOLD
    also: tuple[str, ...] = ALSO


class AlgorithmsAblation(WorldAblation):
    """Algorithms of both kinds under one reward model of the untuned model; arms are called by their trainer first."""

    smoke: ClassVar[Mapping[str, Any]] = {"steps": 1, "train_before": SMOKE_BEFORE, "claims": (), "train": smoke.ONLINE}
    worlds: ClassVar[Mapping[str, Settings]] = {
        world: {"dataset": of["dataset"], "reward": {"name": "bradley_terry", "path": "@judge"}}
        for world, of in (("pocket", POCKET), ("real", REAL))
    }
    worlds_before: ClassVar[Mapping[str, Settings]] = BEFORE

    def length_of(self, arm: str) -> str:
        return "max_steps" if arm.startswith("dpo") else "steps"


class RowsAblation(WorldAblation):
    """Trainers that learn from rows."""

    worlds: ClassVar[Mapping[str, Settings]] = BEFORE
    length: ClassVar[str] = "max_steps"
    smoke: ClassVar[Mapping[str, Any]] = {"steps": 1, "train": {"trainer": {"eval_samples": 8}}}
