"""Settings with which a training run takes seconds and teaches nothing."""

from __future__ import annotations

from typing import Any

ONLINE: dict[str, Any] = {
    "trainer": {
        "rollout_batch_size": 16,
        "train_batch_size": 16,
        "micro_batch_size": 16,
        "group_size": 4,
        "eval_samples": 8,
        "sampling": {"max_tokens": 6},
    }
}
ENSEMBLE: dict[str, Any] = {"reward": {"max_pairs": 32, "heldout_pairs": 16, "batch_size": 16, "micro_batch_size": 16}}
OFFLINE: dict[str, Any] = {"trainer": {"max_steps": 2, "eval_samples": 8}}
