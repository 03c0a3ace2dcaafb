"""Runs that go wrong on the way: what is saved stays saved, and the message says how to go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_for

Rlhf = Callable[..., Any]


@pytest.mark.slow
def test_nan_loss(rlhf: Rlhf, quick: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlhf_plugin_grpo.loss import GrpoClip

    real, calls = GrpoClip.__call__, []

    def third_is_nan(self: GrpoClip, batch: Any) -> Any:
        out = real(self, batch)
        calls.append(1)
        return replace(out, loss=out.loss * float("nan")) if len(calls) == 3 else out

    monkeypatch.setattr(GrpoClip, "__call__", third_is_nan)
    run = tmp_path / "run"
    out = rlhf(
        *quick,
        "--run-dir",
        run,
        "--set",
        "trainer.checkpoint_every=1",
        "--set",
        "trainer.micro_batch_size=16",
        "--set",
        "trainer.drop_constant_groups=false",
    )
    assert out.code == 1
    assert "loss is nan" in out.err
    assert "pocket/arithmetic/train/" in out.err, "the batch is named"
    assert "learning_rate" in out.err
    assert "Traceback" not in out.err
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["step-000001", "step-000002"]
    (row,) = json.loads(rlhf("runs", "list", "--root", tmp_path, "--json").out)
    assert row["status"] == "failed"
    shown = rlhf("runs", "show", run).out
    assert "loss is nan" in shown
    assert f"rlhf train --resume {run}" in shown
    monkeypatch.setattr(GrpoClip, "__call__", real)
    resumed = rlhf("train", "--resume", run, "--json")
    assert (resumed.code, json.loads(resumed.out)["steps"]) == (0, 3)
    (row,) = json.loads(rlhf("runs", "list", "--root", tmp_path, "--json").out)
    assert row["status"] == "completed"


@pytest.mark.slow
def test_reward_that_fails_on_everything(
    rlhf: Rlhf, quick: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlhf_plugin_verifiers.reward import VerifierReward

    def broken(self: Any, samples: Any) -> Any:
        raise RuntimeError("the judge is away")

    monkeypatch.setattr(VerifierReward, "score", broken)
    out = rlhf(*quick, "--run-dir", tmp_path / "run")
    assert out.code == 1
    assert "16 of 16 scores are missing" in out.err
    assert "the judge is away" in out.err
    assert "Traceback" not in out.err


@pytest.mark.slow
def test_ctrl_c(rlhf: Rlhf, quick: tuple[str, ...], tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ("--set", "trainer.steps=16", "--set", "trainer.sampling.max_tokens=8")
    command = [sys.executable, "-m", "rlhf_core.cli.main", *quick, *settings, "--run-dir", str(run)]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    metrics = run / "metrics.jsonl"

    def made_a_step() -> bool:
        assert process.poll() is None, "it ended before its first step"
        return metrics.is_file() and '"reward/mean"' in metrics.read_text()

    wait_for(made_a_step, "the first step", 120)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does: every process of the run gets it
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert f"rlhf train --resume {run}" in err
    assert "Traceback" not in err
    (saved,) = (run / "checkpoints").iterdir()
    assert not (run / "summary.json").exists()
    assert json.loads((run / "failure.json").read_text())["status"] == "interrupted"
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert saved.name == f"step-{max(steps):06d}"
    resumed = rlhf("train", "--resume", run, "--json")
    assert resumed.code == 0, resumed.err
    summary = json.loads(resumed.out)
    assert (summary["status"], summary["steps"]) == ("completed", 16)
    assert "score_error" not in summary["dropped"]
