"""Rollouts sampled ahead of the learner: decided by counts alone, nothing lost or twice."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlhf_core.config.load import validate
from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.hooks import hookimpl
from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.plugins.registry import Registry
from rlhf_core.runs.launch.run import set_up_torch
from rlhf_core.training.rewards import RewardManager
from rlhf_core.training.weight_sync import SamplerPolicy, WeightSync
from rlhf_core.types.errors import ComponentError, DeadlineExceeded
from rlhf_plugin_native.engine import NativeEngine
from rlhf_plugin_schedule.buffered_source import RolloutBuffer
from rlhf_plugin_schedule.rollout_worker import RolloutWorker

from .conftest import ONLINE, Train, largest_difference, one_and_two_processes

LATER = ("staleness/", "buffer/", "importance/")


def settings(steps: int = 5, **trainer: Any) -> dict[str, Any]:
    rate = {"learning_rate": 1e-3}
    return {
        "trainer": {
            "steps": steps,
            "eval_samples": 1,
            "eval_every": 2,
            "checkpoint_every": 2,
            "optimizer": rate,
            "rollout_batch_size": 16,
            "sampling": {"max_tokens": 12},
            **trainer,
        }
    }


def rows(train: Train, run: str) -> list[dict[str, Any]]:
    return [{k: v for k, v in r.items() if k != "time"} for r in read_jsonl(train.folder / run / "metrics.jsonl")]


def weights(train: Train, run: str) -> dict[str, Any]:
    return load_file(train.folder / run / "final" / "model.safetensors")


def same(train: Train, a: str, b: str) -> None:
    """Metrics, trace and weights are equal, bit for bit."""
    assert rows(train, a) == rows(train, b)
    one, two = weights(train, a), weights(train, b)
    assert all(one[k].equal(two[k]) for k in one)
    traces = [(train.folder / n / "trace.jsonl").read_text() for n in (a, b)]
    assert traces[0] == traces[1]


def prompts(train: Train, run: str = "run") -> list[list[str]]:
    """Prompt ids of each step."""
    found = [r for r in read_jsonl(train.folder / run / "trace.jsonl") if r["event"] == "prompt"]
    return [[r["prompt_id"] for r in some] for _, some in itertools.groupby(found, lambda r: r["step"])]


def versions(train: Train, run: str = "run") -> list[set[int]]:
    """Policy versions that sampled each step's completions."""
    found = [r for r in read_jsonl(train.folder / run / "trace.jsonl") if r["event"] == "prompt"]
    return [
        {c["policy_version"] for r in some for c in r["completions"]}
        for _, some in itertools.groupby(found, lambda r: r["step"])
    ]


def workers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "rollout worker"]


@pytest.mark.slow
def test_a_thread_that_may_not_be_ahead_is_the_synchronous_run(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    train(ONLINE, change=settings(2), run="sync")
    inner = RolloutBuffer.__init__

    def no_room(self: RolloutBuffer, chosen: Any, capacity: int) -> None:
        assert capacity == 1
        inner(self, chosen, 0)

    monkeypatch.setattr(RolloutBuffer, "__init__", no_room)
    change = settings(2, rollouts={"max_staleness": 1}, importance={"mode": "off"})
    train(ONLINE, change=change, run="thread")
    # A product of matrices may depend on where in memory they lie: what is computed twice is equal but for rounding.
    for one, other in zip(rows(train, "sync"), rows(train, "thread"), strict=True):
        assert one == pytest.approx({k: v for k, v in other.items() if not k.startswith(LATER)}, rel=1e-5, abs=1e-6)
    after = weights(train, "thread")
    assert all(torch.allclose(one, after[k], rtol=1e-4, atol=1e-4) for k, one in weights(train, "sync").items())


@pytest.mark.slow
def test_the_clock_decides_nothing(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    change = settings(4, rollouts={"max_staleness": 2}, dynamic_sampling={"max_rounds": 2})
    train(ONLINE, change=change, run="quick")
    assert versions(train, "quick")[:4] == [{0}, {0}, {0}, {1}]
    score, rng = RewardManager.score, random.Random(0)

    def late(self: RewardManager, *args: Any) -> Any:
        time.sleep(rng.uniform(0, 0.15))
        return score(self, *args)

    monkeypatch.setattr(RewardManager, "score", late)
    train(ONLINE, change=change, run="slow")
    same(train, "quick", "slow")


@pytest.mark.slow
def test_what_is_too_stale_is_thrown_away_and_its_prompts_come_again(train: Train) -> None:
    """Two updates a step and room for two batches, but only two versions of staleness: some batches must go."""
    change = settings(6, rollouts={"max_staleness": 2, "capacity": 2}, train_batch_size=8, eval_samples=0)
    change["dataset"] = {"limit": 24}
    summary = train(ONLINE, change=change)
    steps = [r for r in rows(train, "run") if "staleness/max" in r]
    assert max(r["staleness/max"] for r in steps) == 2
    assert summary["dropped"]["prompts_evicted"] == sum(r["buffer/evicted"] for r in steps) > 0
    seen = prompts(train)
    assert [len(set(s)) for s in seen] == [4] * 6
    assert Counter(p for step in seen for p in step).most_common(1)[0][1] == 1, "an epoch: each once, none lost"


@pytest.mark.slow
def test_what_a_batch_set_aside_is_told_although_it_became_too_stale(train: Train) -> None:
    summary = train(
        ONLINE,
        change=settings(
            4,
            rollouts={"max_staleness": 2, "capacity": 2},
            train_batch_size=8,
            eval_samples=0,
            dynamic_sampling={"max_rounds": 2},
            checkpoint_every=0,
        ),
    )
    steps = [r for r in rows(train, "run") if "dynamic_sampling/set_aside" in r]
    assert summary["dropped"]["prompts_evicted"] > 0
    aside = [r for r in read_jsonl(train.folder / "run" / "trace.jsonl") if r["event"] == "set_aside"]
    assert len(aside) == summary["dropped"]["groups_set_aside"] > sum(r["dynamic_sampling/set_aside"] for r in steps)


@pytest.mark.slow
def test_a_batch_may_be_read_again(train: Train) -> None:
    summary = train(
        ONLINE,
        change=settings(
            4,
            rollouts={"max_staleness": 1, "max_reads": 2},
            rollout_batch_size=32,
            eval_samples=0,
            kl={"coefficient": 0.01},
        ),
    )
    seen = prompts(train)
    assert seen[0] == seen[1] != seen[2] == seen[3]
    assert versions(train) == [{0}, {0}, {2}, {2}]
    steps = [r for r in rows(train, "run") if "staleness/max" in r]
    assert [r["staleness/max"] for r in steps] == [0, 1, 0, 1]
    assert [r["importance/mean_ratio"] == pytest.approx(1, abs=1e-4) for r in steps] == [True, False, True, False]
    assert summary["dropped"]["scores_ok"] == 64, "scored once"
    assert [r["tokens_generated"] > 0 for r in steps] == [True, False, True, False]
    times = [r["time"] for r in read_jsonl(train.folder / "run" / "metrics.jsonl") if "time" in r]
    assert ["rollout" in t for t in times] == [True, False, True, False], "sampled once"


def test_what_the_worker_raises_ends_the_run(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    generate = NativeEngine.generate

    def breaks(self: NativeEngine, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise OSError("the engine's socket is gone")
        return generate(self, *args)

    monkeypatch.setattr(NativeEngine, "generate", breaks)
    with pytest.raises(ComponentError, match="socket is gone"):
        train(ONLINE, change=settings(5, rollouts={"max_staleness": 2}, eval_samples=0))
    assert not workers()
    assert [r["step"] for r in rows(train, "run")] == [1, 2], "what was sampled before is learned from"


def test_hooks_hear_of_a_batch_in_the_step_that_first_learns_from_it(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[str, int, str]] = []

    class Listener:
        @hookimpl
        def rlhf_rollouts_ready(self, event: Any) -> None:
            heard.append(("rollouts", event.step, threading.current_thread().name))

        @hookimpl
        def rlhf_rewards_ready(self, event: Any) -> None:
            heard.append(("rewards", event.step, threading.current_thread().name))

        @hookimpl
        def rlhf_step_end(self, event: Any) -> None:
            heard.append(("end", event.step, threading.current_thread().name))

    calls: list[int] = []
    generate = NativeEngine.generate

    def counted(self: NativeEngine, requests: Any, *args: Any) -> Any:
        calls.append(len(requests))
        return generate(self, requests, *args)

    monkeypatch.setattr(NativeEngine, "generate", counted)
    train(ONLINE, Listener(), change=settings(4, rollouts={"max_staleness": 8, "max_reads": 2}, eval_samples=0))
    assert calls == [16, 16], "no more is sampled than the run will learn from"
    first, again = ("rollouts", "rewards", "end"), ("end",)
    heard_in_step = {1: first, 2: again, 3: first, 4: again}
    assert heard == [(what, step, "MainThread") for step, whats in heard_in_step.items() for what in whats]


def test_a_wait_has_a_deadline_and_a_name_and_a_decode_can_be_cancelled() -> None:
    policy = load_policy(ModelConfig())
    copy = SamplerPolicy(policy.model)
    begun = threading.Event()

    def decodes_for_ever(*_: Any) -> Any:
        import torch

        while True:
            begun.set()
            copy.model(torch.tensor([[1, 2, 3]]))

    weight_sync = WeightSync(policy.model, nullcontext, copy, None, copy.names)
    worker = RolloutWorker(decodes_for_ever, weight_sync, copy.model, timeout_s=0.3)
    worker.request(7, 12, weight_sync.snapshot(12))
    with pytest.raises(DeadlineExceeded, match=r"rollout batch 7 \(policy version 12\) was not there after") as late:
        worker.wait(7, 12)
    assert "in decodes_for_ever\n" in str(late.value)
    assert begun.is_set()
    worker.close()
    assert not workers()


def test_a_copy_shares_what_is_not_trained_and_follows_what_is() -> None:
    import torch

    policy = load_policy(ModelConfig.model_validate({"lora": {"r": 4}})).model
    copy = SamplerPolicy(policy)
    assert copy.names
    assert all("lora_" in name for name in copy.names)
    mine, theirs = dict(copy.model.named_parameters()), dict(policy.named_parameters())
    assert all((mine[n] is theirs[n]) == (n not in copy.names) for n in theirs)
    with torch.no_grad():
        for name in copy.names:
            theirs[name].normal_()
    taken = {n: theirs[n].detach().clone() for n in copy.names}
    assert not any(mine[n].equal(theirs[n]) for n in copy.names)
    copy.load(taken)
    assert all(mine[n].equal(theirs[n]) for n in copy.names)


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_sample_ahead_what_one_does(tmp_path: Path) -> None:
    """With dynamic sampling, so that the workers of the ranks talk to each other while the learners do."""
    settings = ("eval_every=1", "checkpoint_every=1", "rollouts.max_staleness=1", "dynamic_sampling.max_rounds=2")
    runs = one_and_two_processes(tmp_path, "steps=3", "rollout_batch_size=16", *settings)
    found = [
        [
            (r["step"], r["prompt_id"], [(c["text"], c["policy_version"]) for c in r["completions"]])
            for r in read_jsonl(run / "trace.jsonl")
            if r["event"] == "prompt"
        ]
        for run in runs
    ]
    assert found[0] == found[1]
    assert largest_difference(*runs) < 1e-5


@pytest.mark.long
@pytest.mark.slow
def test_two_kills_at_random_moments(tmp_path: Path) -> None:
    case = "pure, a step ahead"
    command = [sys.executable, "-m", "scripts.faults", "--only", case, "--out", str(tmp_path), "kills", "kills=2"]
    out = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert out.returncode == 0, out.stdout + out.stderr
    assert json.loads((tmp_path / "kills.json").read_text())["cases"][case]["results"]["kills"] >= 2


def test_who_samples_and_who_learns_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    def threads(**said: Any) -> int:
        config = {"trainer": {"name": "grpo", **said.pop("trainer", {})}, "reward": "verifier", **said}
        set_up_torch(validate(Registry(disabled=()), config))
        return torch.get_num_threads()

    before, ahead = torch.get_num_threads(), {"rollouts": {"max_staleness": 1}}
    monkeypatch.setattr("rlhf_core.runs.launch.process.initial_threads", lambda: 4)
    try:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        assert [threads(), threads(trainer=ahead), threads(trainer=ahead, threads=3), threads()] == [4, 2, 3, 4]
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        torch.set_num_threads(1)
        assert threads(trainer=ahead) == 1
    finally:
        torch.set_num_threads(before)
