"""ReMax: whole runs whose baselines are the rewards of greedy completions, sampled beside those that count."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import rlhf_core
from rlhf_core.config import ConfigError, Registry
from rlhf_core.data import read_jsonl
from rlhf_core.models import ModelConfig, load_policy
from rlhf_core.rewards import Score, ScoreStatus
from rlhf_core.rl import OnlineTrainerConfig
from rlhf_plugin_schedule.sampled_trace import SampledTrace
from rlhf_testing import make_context, make_rollouts

SIZES = {
    "steps": 4,
    "rollout_batch_size": 8,
    "group_size": 2,
    "sampling": {"max_tokens": 6, "temperature": 3.0},
    "eval_samples": 0,
    "gold_samples": 0,
    "trace_prompts": 8,
    "kl": {"coefficient": 0.0},
    "optimizer": {"learning_rate": 1e-3},
}


def letters(samples: Sequence[Any]) -> list[float]:
    """A function of the text alone."""
    return [float(len(set(sample.completion))) for sample in samples]


def train(folder: Path, algo: str = "remax", steps: int = 4, **settings: Any) -> Any:
    every = {"trainer": {**SIZES, "steps": steps}, "threads": 1, **settings}
    return rlhf_core.train(
        algo, dataset="pocket/arithmetic", reward=letters, settings=every, run_dir=folder, progress=False
    )


def rows(folder: Path) -> list[dict[str, Any]]:
    steps = [row for row in read_jsonl(folder / "metrics.jsonl") if "tokens_generated" in row]
    return [{key: value for key, value in row.items() if key != "time"} for row in steps]


def traced(folder: Path) -> list[dict[str, Any]]:
    return [row for row in read_jsonl(folder / "trace.jsonl") if row.get("stage") == "step" and "prompt_ids" in row]


def test_the_baseline_is_the_reward_of_the_greedy_completion() -> None:
    estimator = Registry(disabled=()).load("advantage", "remax")().build(make_context())
    scores = [
        Score(1.0, parts={"greedy": 0.25}),
        Score(0.0, parts={"greedy": 0.25}),
        Score(1.0),
        Score.failed(ScoreStatus.ERROR, "no answer"),
    ]
    estimate = estimator.estimate(make_rollouts(2, 2)[0], scores, [0, 0, 1, 1])
    assert list(estimate.values) == [0.75, -0.25, None, None]
    assert estimate.metrics == {"better_than_greedy": 0.5}


def test_a_run_scores_a_greedy_completion_of_each_prompt_and_learns_from_the_others(tmp_path: Path) -> None:
    train(tmp_path / "run", steps=1)
    policy: Any = load_policy(ModelConfig())
    groups = traced(tmp_path / "run")
    assert len(groups) == 4
    for row in groups:
        ids = list(row["prompt_ids"])
        for _ in range(6):
            ids.append(int(policy.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        text = policy.tokenizer.decode(ids[-6:], skip_special_tokens=True)
        assert len(row["completions"]) == 2
        for one in row["completions"]:
            assert one["parts"]["greedy"] == len(set(text))
            assert one["advantage"] == pytest.approx(len(set(one["text"])) - len(set(text)))
    assert any(one["advantage"] for row in groups for one in row["completions"])
    (step,) = rows(tmp_path / "run")
    assert step["train/tokens"] == step["tokens_generated"], "the greedy completions are not learned from"
    told = [one["advantage"] * sum(one["logprobs"]) for row in groups for one in row["completions"]]
    assert step["loss"] == pytest.approx(-sum(told) / step["train/tokens"]), "-A log pi of whole completions"


def test_it_reads_no_token_of_a_completion_that_is_not_traced() -> None:
    estimator = Registry(disabled=()).load("advantage", "remax")().build(make_context())
    rollouts = make_rollouts(1, 2)[0]
    assert SampledTrace(OnlineTrainerConfig(name="t", trace_every=0), estimator, True).outline(rollouts) != rollouts


def test_a_run_that_goes_on_is_the_same(tmp_path: Path) -> None:
    train(tmp_path / "whole", steps=3)
    train(tmp_path / "cut", steps=1).resume(reward=letters, settings={"trainer.steps": 3})
    whole = rows(tmp_path / "whole")
    assert rows(tmp_path / "cut") == whole
    assert len(whole) == 3


def test_batches_that_are_sampled_ahead_have_baselines_too(tmp_path: Path) -> None:
    train(tmp_path / "run", steps=3, **{"trainer.rollouts.max_staleness": 1})
    assert [row["staleness/max"] for row in rows(tmp_path / "run")] == [0.0, 1.0, 1.0]
    assert all(one["parts"]["greedy"] > 0 for row in traced(tmp_path / "run") for one in row["completions"])


@pytest.mark.parametrize(
    ("algo", "settings", "says"),
    [
        ("grpo", {"advantage": "remax"}, "nobody samples the greedy completion"),
        ("grpo", {"loss": "remax"}, "nobody samples the greedy completion"),
        ("remax", {"advantage": "raw"}, "the greedy completions would be sampled for nothing"),
    ],
)
def test_halves_of_it_are_refused(tmp_path: Path, algo: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        train(tmp_path / "run", algo, **settings)
    assert not (tmp_path / "run").exists()
