from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rlhf_studies.common import smoke
from rlhf_studies.common.ablation.sums import SumsAblation
from rlhf_studies.common.ablation.worlds import unnamed
from rlhf_study.ablation.config import Settings


class ArithmeticAlgorithmsConfig(SumsAblation):
    """Seven algorithms on ``pocket/arithmetic`` with the numeric verifier: equal task, batch, four updates per rollout
    batch, learning rate and steps; the rest is each algorithm's own recipe, but for what its arm changes."""

    name: str = "arithmetic_algorithms"
    smoke: ClassVar[Mapping[str, Any]] = {
        "steps": 1,
        "arms": {"rloo": {"trainer": {"name": "rloo"}}},
        "train": {"trainer": {**smoke.ONLINE["trainer"], "train_batch_size": 4}},
    }
    worlds: ClassVar[Mapping[str, Settings]] = unnamed(SumsAblation.worlds)
    shared: ClassVar[Settings] = {
        "trainer": {
            "rollout_batch_size": 256,
            "train_batch_size": 64,
            "epochs_per_rollout_batch": 1,
            "eval_samples": 1000,
        }
    }
    arms: Mapping[str, Settings] = {
        # A critic that knows nothing yet is no baseline: it learns alone first, and faster. No KL, as for the others.
        # Eight completions of a prompt, as for the others: with one of each it sees eight times as many sums.
        "ppo": {
            "trainer": {"name": "ppo", "kl": {"controller": "fixed"}, "group_size": 8},
            "advantage": {"name": "gae", "critic": {"learning_rate": 1e-3}, "warmup_steps": 3},
        },
        **{name: {"trainer": {"name": name}} for name in ("grpo", "dr_grpo", "dapo")},
        # The paper's 3e-4 is for answers of thousands of tokens: the geometric mean over ten moves much farther.
        "gspo": {
            "trainer": {"name": "gspo"},
            "loss": {"name": "gspo", "clip_range": 0.03, "clip_range_high": 0.04},
        },
        **{name: {"trainer": {"name": name}} for name in ("rloo", "cispo")},
    }
    also: tuple[str, ...] = ("reward/part/answer",)

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    steps: int = 40
