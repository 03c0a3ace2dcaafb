"""Third-party components that remember something: killed and resumed, a run is the uninterrupted one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from .conftest import Fakes

MOODS = '''
"""Every component counts its calls and draws random numbers when it is built and when it is used."""

import os
import signal
from dataclasses import replace
from typing import ClassVar

from rlhf_core.config import ComponentConfig
from rlhf_core.hooks import hookimpl
from rlhf_core.rewards import Score


class Counts:
    def __init__(self, inner=None):
        import torch

        self.inner, self.count = inner, 0
        torch.rand(7)

    def draw(self):
        import torch

        self.count += 1
        return 1 + 0.1 * self.count + float(torch.rand(()))

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Loss(Counts):
    def __call__(self, batch):
        out = self.inner(batch)
        return replace(out, loss=out.loss * self.draw())


class Reward(Counts):
    def score(self, samples):
        return [Score(len(s.completion) + self.draw()) for s in samples]


class Advantage(Counts):
    def estimate(self, rollouts, scores, group_ids):
        scale, out = self.draw(), self.inner.estimate(rollouts, scores, group_ids)
        return replace(out, values=[None if v is None else v * scale for v in out.values])


class Engine(Counts):
    def generate(self, requests, sampling, policy_version):
        by = self.draw()
        found = self.inner.generate(requests, sampling, policy_version)
        return [replace(r, logprobs_T=(r.logprobs_T - 0.5 * by).astype("float32")) for r in found]


class Monitor(Counts):
    def observe(self, step, metrics):
        return "every third" if self.draw() and self.count % 3 == 0 else None


class LossConfig(ComponentConfig):
    name: str = "moody"
    consumes: ClassVar[str | None] = "token_advantages"

    def build(self, ctx):
        from rlhf_plugin_grpo.loss import GrpoClip

        return Loss(GrpoClip(0.2, 0.2))


class ImitationConfig(ComponentConfig):
    name: str = "moody_imitation"
    consumes: ClassVar[str | None] = "labels"

    def build(self, ctx):
        from rlhf_plugin_sft.config import CrossEntropyConfig

        return Loss(CrossEntropyConfig().build(ctx))


class RewardConfig(ComponentConfig):
    name: str = "moody"

    def build(self, ctx):
        return Reward()


class AdvantageConfig(ComponentConfig):
    name: str = "moody"
    min_group_size: ClassVar[int] = 2

    def build(self, ctx):
        from rlhf_plugin_grpo.config import GroupNormConfig

        return Advantage(GroupNormConfig().build(ctx))


class EngineConfig(ComponentConfig):
    name: str = "moody"

    def build(self, ctx):
        from rlhf_plugin_native.config import NativeRolloutConfig

        return Engine(NativeRolloutConfig().build(ctx))


class MonitorConfig(ComponentConfig):
    name: str = "moody"

    def build(self, ctx):
        return Monitor()


class Hooks:
    @hookimpl
    def rlhf_step_end(self, event):
        raise RuntimeError("counted")

    @hookimpl
    def rlhf_batch_ready(self, event):
        if str(event.step) == os.environ.get("KILL_IN_STEP"):
            os.kill(os.getpid(), signal.SIGKILL)


hooks = Hooks()
'''
ENTRIES = """
[rlhf]
moods = acme_moods:hooks
[rlhf.loss]
moody = acme_moods:LossConfig
moody_imitation = acme_moods:ImitationConfig
[rlhf.reward]
moody = acme_moods:RewardConfig
[rlhf.advantage]
moody = acme_moods:AdvantageConfig
[rlhf.rollout]
moody = acme_moods:EngineConfig
[rlhf.monitor]
moody = acme_moods:MonitorConfig
"""
RUNS = {
    "online": [
        "--algo",
        "grpo",
        "--loss",
        "moody",
        "--advantage",
        "moody",
        "--set",
        "rollout.name=moody",
        "--set",
        "trainer.drift_check=warn",
        "--set",
        "trainer.steps=4",
        "--set",
        "trainer.rollout_batch_size=8",
        "--set",
        "trainer.group_size=4",
        "--set",
        "reward.name=moody",
        "--set",
        "dataset={name: pocket, subset: arithmetic}",
        "--set",
        "dataset.reward.name=moody",
    ],
    "offline": [
        "--algo",
        "sft",
        "--loss",
        "moody_imitation",
        "--set",
        "trainer.max_steps=4",
        "--set",
        "trainer.batch_size=4",
    ],
}
BOTH = [
    "--set",
    "trainer.eval_samples=4",
    "--set",
    "trainer.checkpoint_every=2",
    "--set",
    "trainer.sampling.max_tokens=8",
    "--set",
    "monitors=[{name: moody}]",
]


def left_by(run: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((run / "summary.json").read_text())
    for row in (*rows, summary):
        row.pop("time", None)
        row.pop("seconds", None)
    return {"metrics": rows, "summary": summary, "trace": (run / "trace.jsonl").read_text()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNS)
def test_kill_and_resume(fakes: Fakes, kind: str) -> None:
    fakes.add("acme-moods", ENTRIES, MOODS)
    args = ["train", *RUNS[kind], *BOTH]
    whole, killed = fakes.folder / "whole", fakes.folder / "killed"
    out = fakes.rlhf(*args, "--run-dir", str(whole))
    assert out.returncode == 0, out.stderr
    assert fakes.process(*args, "--run-dir", str(killed), KILL_IN_STEP="4").returncode == -9
    out = fakes.rlhf("train", "--resume", str(killed))
    assert out.returncode == 0, out.stderr
    expected, found = left_by(whole), left_by(killed)
    assert found == expected
    assert expected["summary"]["hook_errors"] == {"acme-moods/moods:rlhf_step_end": 4}
    assert expected["summary"]["dropped"]["monitor_warnings"] == 1
    if kind == "online":
        assert expected["summary"]["dropped"]["drift_warnings"] == 1
    a, b = (load_file(str(run / "final" / "model.safetensors")) for run in (whole, killed))
    assert all(a[k].equal(b[k]) for k in a)


def test_a_state_that_cannot_be_saved_is_named(fakes: Fakes) -> None:
    fakes.add("acme-moods", ENTRIES, MOODS.replace('{"count": self.count}', '{"counts": [{"set": {self.count}}]}'))
    out = fakes.rlhf("train", *RUNS["offline"], *BOTH, "--run-dir", str(fakes.folder / "run"))
    assert out.returncode == 2, out.stderr
    assert "state_dict() of monitor 'moody' (acme-moods 1.0) holds a set" in out.stderr


@pytest.mark.slow
def test_a_state_that_the_checkpoint_lacks_is_named(fakes: Fakes) -> None:
    forgetful = MOODS.replace("def state_dict", "def no_state_dict")
    fakes.add("acme-moods", ENTRIES, forgetful)
    run = fakes.folder / "run"
    assert fakes.rlhf("train", *RUNS["offline"], *BOTH, "--run-dir", str(run)).returncode == 0
    shutil.rmtree(run / "checkpoints" / "step-000004")
    shutil.rmtree(run / "final")
    (run / "summary.json").unlink()
    (fakes.folder / "acme_moods.py").write_text(MOODS)
    out = fakes.rlhf("train", "--resume", str(run))
    assert out.returncode == 2
    assert "the checkpoint has no state of monitor 'moody' (acme-moods 1.0)" in out.stderr
    assert "Traceback" not in out.stderr
