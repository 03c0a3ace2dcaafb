"""Two gloo ranks make the run of one process, and a killed run goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

ENV = {**os.environ, "OMP_NUM_THREADS": "1"}
ARGS = (
    "--algo",
    "ppo",
    "--reward",
    "verifier",
    "--dataset",
    "pocket/arithmetic",
    "--set",
    "dataset.limit=32",
    "--set",
    "reward.workers=1",
    "--set",
    "trainer.epochs_per_rollout_batch=2",
    "--set",
    "trainer.eval_samples=0",
    "--set",
    "trainer.rollout_batch_size=16",
    "--set",
    "trainer.train_batch_size=8",
    "--set",
    "trainer.sampling.max_tokens=12",
)


def start(*words: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "rlhf_core.cli.main", "train", *map(str, words)]
    return subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(process: subprocess.Popen[bytes]) -> None:
    out, _ = process.communicate(timeout=250)
    assert process.returncode == 0, out.decode()[-3000:]


def weights(run: Path, step: int) -> dict[str, object]:
    critic = load_file(str(run / f"checkpoints/step-{step:06d}/critic.safetensors"))
    policy = load_file(str(run / "final" / "model.safetensors"))
    return {**{f"critic.{k}": v for k, v in critic.items()}, **policy}


def gap(a: dict[str, object], b: dict[str, object]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[k] - b[k]).abs().max()) for k in a)  # type: ignore[operator,attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["separate", pytest.param("shared", marks=pytest.mark.long)])
def test_two_processes_make_the_run_of_one(kind: str, tmp_path: Path, call: Callable[..., Any]) -> None:
    """Small steps, so that rounding does not show in Adam's sign. The second step's KL coefficient has been steered."""
    settings = (
        "--set",
        f"advantage.critic.kind={kind}",
        "--set",
        "trainer.optimizer.eps=1e-3",
        "--set",
        "trainer.steps=2",
        "--set",
        "trainer.kl.target=0.01",
    )
    assert call("train", *ARGS, *settings, "--run-dir", tmp_path / "1").code == 0
    finish(start(*ARGS, *settings, "--nproc", 2, "--run-dir", tmp_path / "2"))
    assert gap(weights(tmp_path / "1", 2), weights(tmp_path / "2", 2)) < 1e-5
    rows = [[json.loads(line) for line in (tmp_path / n / "metrics.jsonl").open()] for n in ("1", "2")]
    for single, double in zip(*rows, strict=True):
        for name in (
            "loss",
            "value_loss",
            "approx_kl",
            "clip_fraction",
            "critic_grad_norm",
            "kl_coefficient",
            "explained_variance",
            "value/mean",
            "return/mean",
        ):
            assert single[name] == pytest.approx(double[name], rel=1e-4, abs=1e-5), name
        assert single["reward/std"] > 0


@pytest.mark.slow
@pytest.mark.long  # cut back: tests/resume/test_resume_matrix.py[ppo-1]; killed: test_kill_and_resume.py[killed-grpo]
@pytest.mark.parametrize("settings", [(), ("advantage.critic.kind=shared", "model.lora.r=4")])
def test_a_killed_run_goes_on_bit_for_bit(settings: tuple[str, ...], tmp_path: Path, call: Callable[..., Any]) -> None:
    words = [
        *ARGS,
        "--set",
        "trainer.steps=4",
        "--set",
        "trainer.rollout_batch_size=8",
        "--set",
        "trainer.train_batch_size=4",
        "--set",
        "trainer.checkpoint_every=2",
        "--set",
        "threads=1",
        *(w for s in settings for w in ("--set", s)),
    ]
    assert call("train", *words, "--run-dir", tmp_path / "whole").code == 0
    cut, process = tmp_path / "cut", start(*words, "--run-dir", tmp_path / "cut")
    metrics, deadline = cut / "metrics.jsonl", time.monotonic() + 200
    while process.poll() is None and time.monotonic() < deadline:
        if metrics.is_file() and metrics.read_text().count("\n") >= 3:
            break
        time.sleep(0.002)
    process.kill()
    process.communicate()
    assert not (cut / "summary.json").is_file(), "it was killed before its end"
    assert call("train", "--resume", cut).code == 0
    assert gap(weights(tmp_path / "whole", 4), weights(cut, 4)) == 0
    states = [load_file(str(run / "checkpoints/step-000004/state.safetensors")) for run in (tmp_path / "whole", cut)]
    assert states[0].keys() == states[1].keys()
    assert all(states[0][k].equal(states[1][k]) for k in states[0])
