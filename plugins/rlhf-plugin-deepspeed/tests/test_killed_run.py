"""PPO from the command line: killed in stage 3 on two ranks, resumed on one, then on two, with FSDP and in stage 2,
equals one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.waiting import wait_for

TRAIN = [sys.executable, "-m", "rlhf_core.cli.main", "train"]
SETTINGS = {
    "threads": 1,
    "strategy.device": "cpu",
    "trainer.steps": 4,
    "trainer.checkpoint_every": 1,
    "trainer.rollout_batch_size": 8,
    "trainer.train_batch_size": 8,
    "trainer.sampling.max_tokens": 12,
    "trainer.eval_samples": 0,
    "trainer.optimizer.schedule": "constant",
    "trainer.optimizer.warmup_steps": 0,
    "trainer.optimizer.eps": 1e-3,  # rounding does not show in Adam's sign
}
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def words(strategy: str, **settings: Any) -> list[str]:
    both = {"strategy": strategy, **SETTINGS, **settings}  # its own settings after its name
    return ["--algo", "ppo", "--reward", "verifier", "--dataset", "pocket/arithmetic"] + [
        word for name, value in both.items() for word in ("--set", f"{name}={value}")
    ]


def to(strategy: str) -> list[str]:
    return ["--nproc", "2", "--set", f"strategy={strategy}", "--set", "strategy.device=cpu"]


def train(*given: str) -> str:
    done = subprocess.run([*TRAIN, *given], env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def kill_after_a_checkpoint(run: Path, *given: str) -> None:
    """All of its processes at once, as a machine that goes down."""
    with (run.parent / "killed.log").open("w") as log:
        process = subprocess.Popen(
            [*TRAIN, *given], env=ENVIRONMENT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:

            def saved() -> bool:
                assert process.poll() is None, (run.parent / "killed.log").read_text()[-3000:]
                return bool(list(run.glob("checkpoints/step-*/manifest.json")))

            wait_for(saved, "a checkpoint", 200)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def weights(run: Path) -> dict[str, torch.Tensor]:
    """Of the policy and, of the last checkpoint, the critic."""
    critic = max(run.glob("checkpoints/step-*/critic.safetensors"))
    return {
        **load_file(run / "final" / "model.safetensors"),
        **{f"critic {k}": v for k, v in load_file(critic).items()},
    }


def metric(run: Path, name: str) -> list[float]:
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [row[name] for row in rows if name in row]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(560)
@pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="needs DeepSpeed: pip install 'rlhf-plugin-deepspeed[deepspeed]'"
)
def test_a_killed_run_goes_on_with_other_ranks_and_strategies_and_equals_one_process(tmp_path: Path) -> None:
    run, plain = tmp_path / "run", tmp_path / "plain"
    kill_after_a_checkpoint(run, *words("deepspeed"), "--nproc", "2", "--run-dir", str(run))
    assert not (run / "final").exists()
    said = train("--resume", str(run), "--nproc", "1")
    assert "processes 2 -> 1" in said
    train("--resume", str(run), "--nproc", "2", "--set", "trainer.steps=6")
    train("--resume", str(run), *to("fsdp"), "--set", "trainer.steps=7")
    said = train("--resume", str(run), *to("deepspeed"), "--set", "strategy.stage=2", "--set", "trainer.steps=8")
    assert "strategy.name fsdp -> deepspeed" in said
    train(*words("auto", **{"trainer.steps": 8}), "--run-dir", str(plain))
    got, want = weights(run), weights(plain)
    assert got.keys() == want.keys()
    assert max(float((got[name] - tensor).abs().max()) for name, tensor in want.items()) < 1e-5
    for name in ("loss", "grad_norm", "critic_grad_norm"):
        assert len(metric(run, name)) == 8
        assert metric(run, name) == pytest.approx(metric(plain, name), abs=1e-5)
