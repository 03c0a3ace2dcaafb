"""Adapters, supervised runs, resuming and stopping on two gloo ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from rlhf_core.data.atomic import TEMPORARY
from rlhf_core.runs.checkpoint import CheckpointStore
from tests.resume.runs import train as train_here

ONLINE = [
    "--algo",
    "grpo",
    "--reward",
    "verifier",
    "--dataset",
    "pocket/arithmetic",
    "--set",
    "dataset.limit=64",
    "--set",
    "trainer.steps=4",
    "--set",
    "trainer.rollout_batch_size=16",
    "--set",
    "trainer.group_size=4",
    "--set",
    "trainer.eval_samples=5",
    "--set",
    "trainer.micro_batch_size=4",
]
LORA = ["--set", "model.lora.r=4"]
DICE = ["--set", "reward.name=dice"]
SFT = [
    "--algo",
    "sft",
    "--set",
    "dataset.limit=64",
    "--set",
    "trainer.max_steps=4",
    "--set",
    "trainer.batch_size=6",
    "--set",
    "trainer.micro_batch_size=2",
    "--set",
    "trainer.eval_samples=1",
]
"""One of two ranks has no row to evaluate on."""
HOOKS = '''
import os, resource, signal, sys, time
from rlhf_core.config import ComponentConfig
from rlhf_core.hooks import StopRun, hookimpl
from rlhf_core.rewards import Score

class Dice:
    """Every rank has random numbers and a count of its own."""

    def __init__(self):
        import torch

        self.count = 10 * int(os.environ["RANK"])
        torch.rand(1 + self.count)

    def score(self, samples):
        import torch

        self.count += 1
        return [Score(self.count + float(torch.rand(()))) for _ in samples]

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]

class DiceConfig(ComponentConfig):
    name: str = "dice"

    def build(self, ctx):
        return Dice()

def fall_asleep():
    time.sleep(600)

class Hooks:
    @hookimpl
    def rlhf_batch_ready(self, event):
        if os.environ["RANK"] == "1" and str(event.step) == os.environ.get("KILL_IN_STEP"):
            os.kill(os.getpid(), signal.SIGKILL)
        if os.environ["RANK"] == "1" and str(event.step) == os.environ.get("SLEEP_IN_STEP"):
            fall_asleep()
        if os.environ["RANK"] == "1" and str(event.step) == os.environ.get("FULL_IN_STEP"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, -1))  # it can write no more than that into a file

    @hookimpl
    def rlhf_step_end(self, event):
        sys.setswitchinterval(1000)  # a gloo thread waits long for the lock; ending must not wait for that thread
        if os.environ["RANK"] == "1" and str(event.step) == os.environ.get("STOP_IN_STEP"):
            raise StopRun("rank 1 has seen enough")

hooks = Hooks()
'''


@pytest.fixture
def hooked(tmp_path: Path) -> Path:
    """A folder with a plugin: a reward, and a hook that kills, stops, holds up rank 1 or fills its disk in a step."""
    folder = tmp_path / "site"
    info = folder / "acme_ranks-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "acme_ranks.py").write_text(HOOKS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-ranks\nVersion: 1.0\n")
    entries = "[rlhf]\nranks = acme_ranks:hooks\n[rlhf.reward]\ndice = acme_ranks:DiceConfig\n"
    (info / "entry_points.txt").write_text(entries)
    return folder


def train(run: Path, *args: str, code: int = 0, **env: str) -> str:
    command = [sys.executable, "-m", "rlhf_core.cli.main", "train", *args]
    command += [] if "--resume" in args else ["--run-dir", str(run)]
    out = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert (out.returncode == 0) == (code == 0), out.stderr[-3000:]
    return out.stderr


def weights(run: Path) -> dict[str, Any]:
    return load_file(str(run / "final" / "model.safetensors"))


def rows(run: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "time"} for row in found]


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        [*ONLINE, *LORA, "--set", "trainer.steps=2", "--set", "reward.workers=1"],
        pytest.param(SFT, marks=pytest.mark.long),
    ],  # sft too: test_traffic.py
    ids=["grpo-lora", "sft"],
)
def test_two_processes_make_the_run_of_one(args: list[str], tmp_path: Path) -> None:
    assert train_here(*args, "--run-dir", str(tmp_path / "1")) == 0
    train(tmp_path / "2", *args, "--nproc", "2")
    one, two = weights(tmp_path / "1"), weights(tmp_path / "2")
    assert one.keys() == two.keys()
    assert max(float((one[k] - two[k]).abs().max()) for k in one) < 1e-4
    a, b = rows(tmp_path / "1"), rows(tmp_path / "2")
    assert [r["step"] for r in a] == [r["step"] for r in b]
    for key in ("loss", "grad_norm", "eval/loss"):
        assert [r[key] for r in a if key in r] == pytest.approx([r[key] for r in b if key in r], abs=2e-4)
    assert any(r.get("grad_norm", 0) > 0 for r in a)


@pytest.mark.slow
@pytest.mark.long  # a killed rank under FSDP: test_killed_ranks.py
@pytest.mark.parametrize("args", [[*ONLINE, *LORA, *DICE]], ids=["grpo-lora"])
def test_resume(args: list[str], tmp_path: Path, hooked: Path) -> None:
    both = [*args, "--nproc", "2", "--set", "trainer.checkpoint_every=2"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(whole, *both, PYTHONPATH=str(hooked))
    train(killed, *both, code=1, PYTHONPATH=str(hooked), KILL_IN_STEP="4")
    assert not (killed / "final").exists()
    train(killed, "--resume", str(killed), PYTHONPATH=str(hooked))
    assert rows(killed) == rows(whole)
    a, b = weights(whole), weights(killed)
    assert all(a[k].equal(b[k]) for k in a)


@pytest.mark.slow
def test_one_rank_ends_the_run_of_all(tmp_path: Path, hooked: Path) -> None:
    run = tmp_path / "run"
    train(run, *SFT, "--nproc", "2", PYTHONPATH=str(hooked), STOP_IN_STEP="2")
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["steps"], summary["stop_reason"]) == ("stopped", 2, "rank 1 has seen enough")
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step-000002"]
    assert [r["step"] for r in rows(run)] == [0, 1, 2, 2]


@pytest.mark.slow
def test_a_rank_that_hangs_is_found_by_every_rank_s_stack(tmp_path: Path, hooked: Path) -> None:
    deadline = ["--set", "strategy.timeout_s=8"]
    said = train(tmp_path / "run", *SFT, *deadline, "--nproc", "2", code=1, PYTHONPATH=str(hooked), SLEEP_IN_STEP="2")
    assert "rank 0 waited 8 s (deadline 8 s) for the others in step 2" in said
    assert "rank 1 is in step 2" in said
    asleep = said[said.index("rank 1: thread MainThread") :]
    assert "acme_ranks.py" in asleep
    assert "in fall_asleep" in asleep


@pytest.mark.slow
def test_a_disk_that_is_full_for_one_rank_s_shard_leaves_the_checkpoint_before(tmp_path: Path, hooked: Path) -> None:
    """A run that goes on from such a checkpoint is the undisturbed one: test_killed_ranks.py."""
    run = tmp_path / "run"
    sharded = [*SFT, "--nproc", "2", "--set", "strategy=fsdp", "--set", "strategy.device=cpu"]
    sharded += ["--set", "strategy.timeout_s=10", "--set", "trainer.checkpoint_every=1"]
    said = train(run, *sharded, code=1, PYTHONPATH=str(hooked), FULL_IN_STEP="3")
    assert "File too large" in said
    # what the other rank was writing aside may stay; the next that writes there removes it
    whole = sorted(p.name for p in (run / "checkpoints").iterdir() if not p.name.startswith(TEMPORARY))
    assert whole == ["step-000001", "step-000002"]
    assert CheckpointStore(run / "checkpoints").newest_undamaged() == 2
