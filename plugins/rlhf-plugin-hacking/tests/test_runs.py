"""Whole runs of the pocket model: one that hacks its reward, one that learns; stopped and saved."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.config import BuildContext, ComponentConfig, Registry
from rlhf_core.config.load import validate
from rlhf_core.config.plan import Plan, make_plan
from rlhf_core.data import read_jsonl
from rlhf_core.plugins.hooks import HookBus, HookManager
from rlhf_core.rewards import Sample, Score
from rlhf_core.runs.launch.run import preflight, run_plan


class OnesConfig(ComponentConfig):
    """Pays for every digit 1, whatever was asked."""

    name: str = "ones"

    def build(self, ctx: BuildContext) -> Ones:
        return Ones()


class Ones:
    def score(self, samples: Sequence[Sample]) -> list[Score]:
        return [Score(float(s.completion.count("1"))) for s in samples]


class DeadConfig(ComponentConfig):
    """A judge whose service is gone."""

    name: str = "dead"

    def build(self, ctx: BuildContext) -> Dead:
        return Dead()


class Dead:
    def score(self, samples: Sequence[Sample]) -> list[Score]:
        raise OSError("the service is gone")


sys.modules["hacking_ones"] = sys.modules[__name__]  # an entry point names a module, and this one's has hyphens
SECOND = {"divergence": {"second": "verifier", "samples": 32}, "warmup": 2, "hard_stop_signals": 1}
RUN = {
    "threads": 1,
    "dataset": {"name": "pocket", "subset": "arithmetic"},
    "reward": "ones",
    "trainer": {
        "name": "grpo",
        "steps": 14,
        "rollout_batch_size": 32,
        "eval_samples": 0,
        "optimizer": {"learning_rate": 2e-3, "warmup_steps": 1},
        "sampling": {"max_tokens": 10},
    },
}


def train(folder: Path, monitor: Mapping[str, Any], resume: bool = False, **change: Any) -> Mapping[str, Any]:
    registry, bus = Registry(disabled=()), HookBus(HookManager())
    registry.add("reward", "ones", "hacking_ones:OnesConfig", distribution="pytest")
    registry.add("reward", "dead", "hacking_ones:DeadConfig", distribution="pytest")
    trainer = {**RUN["trainer"], **change.pop("trainer", {})}
    config = validate(registry, {**RUN, "monitors": [{"name": "hacking", **monitor}], **change, "trainer": trainer})
    preflight(registry, config, 1)
    plan = Plan.read(folder / "plan.json") if resume else make_plan(registry, config, 1)
    return run_plan(plan, config, registry, bus, folder, resume=resume)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in r.items() if k != "time"} for r in read_jsonl(folder / "metrics.jsonl")]


@pytest.mark.slow
def test_a_run_that_hacks_is_stopped_with_a_checkpoint(tmp_path: Path) -> None:
    summary = train(tmp_path / "run", SECOND)
    assert summary["status"] == "stopped", rows(tmp_path / "run")
    assert "hacking HARD_STOP: " in summary["stop_reason"]
    assert "second reward 'verifier'" in summary["stop_reason"]
    levels = [r for r in rows(tmp_path / "run") if "hacking/level" in r]
    last = levels[-1]
    assert (last["step"], last["hacking/level"]) == (summary["steps"], 2)
    assert (tmp_path / "run" / "checkpoints" / f"step-{summary['steps']:06d}").is_dir()
    best = max(r["hacking/second"] for r in levels)
    assert last["hacking/second"] < best
    assert last["hacking/proxy"] > levels[0]["hacking/proxy"]


@pytest.mark.slow
def test_a_second_reward_that_fails_is_told_and_not_taken_for_agreement(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    second = {**SECOND["divergence"], "second": "dead", "samples": 4}
    train(tmp_path / "run", {"divergence": second}, trainer={"steps": 1, "rollout_batch_size": 16})
    assert "divergence sees nothing" in caplog.text
    assert "the service is gone" in caplog.text
    assert [r["hacking/second_missing"] for r in rows(tmp_path / "run") if "hacking/second_missing" in r] == [4]


@pytest.mark.slow
def test_a_run_that_learns_is_left_alone(tmp_path: Path) -> None:
    """The reward is the truth and the second one the truth in another mixture: both rise together."""
    other_mixture = {"name": "verifier", "verifier": {"name": "numeric", "format_weight": 0.5}}
    summary = train(
        tmp_path / "run",
        {**SECOND, "divergence": {**SECOND["divergence"], "second": other_mixture}},
        reward="verifier",
        trainer={"steps": 8, "rollout_batch_size": 64, "optimizer": {"learning_rate": 3e-4}},
    )
    assert summary["status"] == "completed", summary["stop_reason"]
