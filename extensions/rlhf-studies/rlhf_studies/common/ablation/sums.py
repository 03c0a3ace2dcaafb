"""Ablations of maths policies: sums of the pocket world, and a model of 1.7 billion weights on GSM8K."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rlhf_studies.common.ablation.worlds import WorldAblation
from rlhf_study.ablation.config import Settings

LENGTH = "completion_length/mean"
ALSO = ("reward/part/answer", "entropy", "grad_norm", LENGTH)
SUMS = {"name": "pocket", "subset": "arithmetic"}
COPIES = ("copy1", "copy2", "copy3", "copy4")
TWO_DIGITS = {"name": "pocket", "subset": "two_digit_sums"}


def sums(*more: Settings, **of_each: Any) -> Settings:
    """The sums four times, and ``more`` sources: each of the 139 held-out sums is asked four times, or chance would
    decide between the arms."""
    copies = [{"source": SUMS, "label": label, **of_each} for label in COPIES]
    return {"dataset": {"sources": [*copies, *more]}}


def gsm8k(*more: Settings, **of_each: Any) -> Settings:
    """GSM8K from the hub, and ``more`` sources; its test split is held out."""
    source = {"name": "hub", "path": "openai/gsm8k", "subset": "main", "heldout_split": "test"}
    row = {"label": COPIES[0], "columns": {"prompt": "question"}, "answer_pattern": "#### (.+)"}
    return {"dataset": {"sources": [{"source": source, **row, **of_each}, *more]}}


POCKET: Settings = {
    **sums(),
    "reward": {"name": "verifier"},
    "trainer": {
        "name": "grpo",
        "rollout_batch_size": 128,
        "train_batch_size": 128,
        "micro_batch_size": 64,
        "sampling": {"max_tokens": 16},
        "optimizer": {"learning_rate": 3e-4, "warmup_steps": 4},
        "kl": {"coefficient": 0, "track": False},
        "eval_every": 10,
        "eval_samples": 556,
        "checkpoint_every": 0,
        "trace_prompts": 0,
    },
}
"""One update per rollout batch: on policy."""
REAL: Settings = {
    "model": {"path": "Qwen/Qwen3-1.7B-Base"},
    **gsm8k(),
    "reward": {"name": "verifier", "verifier": {"name": "gsm8k"}},
    "trainer": {
        "name": "grpo",
        "rollout_batch_size": 256,
        "train_batch_size": 256,
        "micro_batch_size": 8,
        "sampling": {"max_tokens": 512},
        "optimizer": {"learning_rate": 1e-6, "warmup_steps": 4},
        "kl": {"coefficient": 0, "track": False},
        "eval_every": 10,
        "eval_samples": 1024,
        "checkpoint_every": 50,
    },
}
"""As the documents train, on one GPU of 80 GB."""


class SumsAblation(WorldAblation):
    """Maths policies under a verifier."""

    worlds: ClassVar[Mapping[str, Settings]] = {"pocket": POCKET, "real": REAL}
    metric: str = "eval/reward/part/answer"
    also: tuple[str, ...] = ALSO
