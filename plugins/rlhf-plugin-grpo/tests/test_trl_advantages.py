"""Advantages equal those that TRL 1.16's trainers make of the same scores, from their own generation step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_core.config import Registry
from rlhf_core.models import ModelConfig, load_policy
from rlhf_core.rewards import Score
from rlhf_testing import make_context, make_rollouts

pytest.importorskip("trl")
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

FIRST = [1.0, 0.0, 0.25, 1.0, 5.0, 7.0, 9.0, 11.0]
SECOND = [0.0, 0.1, 0.0, 0.0, 0.3, 0.1, 0.1, 0.0]


def first(completions: list[Any], **_: Any) -> list[float]:
    return FIRST


def second(completions: list[Any], **_: Any) -> list[float]:
    return SECOND


def theirs(folder: Path, trainer: type, config: type, rewards: list[Any], **options: Any) -> list[float]:
    policy = load_policy(ModelConfig())
    args = config(
        output_dir=str(folder),
        use_cpu=True,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=4,
        report_to="none",
        **options,
    )
    rows = [{"prompt": "What is 2 + 3?"}] * 8
    trl_trainer = trainer(
        model=policy.model,
        reward_funcs=rewards,
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=policy.tokenizer,
    )
    trl_trainer.model.train()
    return trl_trainer._generate_and_score_completions(rows)["advantages"].tolist()


@pytest.mark.parametrize(
    ("name", "options", "trainer", "trl_options", "parts"),
    [
        ("group_norm", {"epsilon": 1e-4}, "grpo", {"scale_rewards": "group"}, 1),
        ("group_mean", {}, "grpo", {"scale_rewards": "none"}, 1),
        ("batch_norm", {"epsilon": 1e-4}, "grpo", {"scale_rewards": "batch"}, 1),
        (
            "gdpo",
            {"epsilon": 1e-4, "parts": {"a": 1.0, "b": 0.5}},
            "grpo",
            {"multi_objective_aggregation": "normalize_then_sum", "reward_weights": [1.0, 0.5]},
            2,
        ),
        (
            "gdpo",
            {"epsilon": 1e-4, "parts": {"a": 1.0, "b": 0.5}, "order": "sum_then_normalise"},
            "grpo",
            {"reward_weights": [1.0, 0.5]},
            2,
        ),
        ("leave_one_out", {}, "rloo", {"normalize_advantages": False, "beta": 0.0}, 1),
    ],
)
def test_advantages_equal_trls(
    tmp_path: Path, name: str, options: dict[str, Any], trainer: str, trl_options: dict[str, Any], parts: int
) -> None:
    cls, config = (GRPOTrainer, GRPOConfig) if trainer == "grpo" else (RLOOTrainer, RLOOConfig)
    expected = theirs(tmp_path, cls, config, [first, second][:parts], **trl_options)
    rollouts, ids = make_rollouts(2, 4)
    scores = [Score(a + b * (parts - 1), {"a": a, "b": b}) for a, b in zip(FIRST, SECOND)]
    estimator = Registry(disabled=()).load("advantage", name)(name=name, **options).build(make_context())
    ours = [float(v) for v in estimator.estimate(rollouts, scores, ids).values]
    assert ours == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert np.std(ours) > 0
