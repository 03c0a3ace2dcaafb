"""Whole runs of the pocket model: a healthy one, and one that a monitor stops."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data import read_jsonl

QUICK = (
    "train",
    "--algo",
    "grpo",
    "--reward",
    "verifier",
    "--dataset",
    "pocket/arithmetic",
    "--set",
    "threads=1",
    "--set",
    "trainer.rollout_batch_size=16",
    "--set",
    "trainer.eval_samples=0",
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Mapping[str, Any]]:
    """Train with these settings; the summary comes back."""
    from rlhf_core.cli.main import main

    monkeypatch.chdir(tmp_path)

    def train(*settings: str) -> Mapping[str, Any]:
        words = [w for s in settings for w in ("--set", s)]
        with pytest.raises(SystemExit) as caught:
            main([*QUICK, "--run-dir", str(tmp_path / "run"), *words])
        assert caught.value.code == 0
        return json.loads((tmp_path / "run" / "summary.json").read_text())

    return train


@pytest.mark.slow
def test_a_healthy_run_is_quiet(run: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rlhf"):
        summary = run("trainer.steps=5", "monitors=[health]")
    assert "monitor_warnings" not in summary["dropped"]
    assert not [r for r in caplog.records if "Likely cause" in r.getMessage()]


@pytest.mark.slow
def test_a_run_that_explodes_is_stopped_with_a_checkpoint(run: Callable[..., Any], tmp_path: Path) -> None:
    summary = run(
        "trainer.steps=40",
        "monitors=[{name: health, stop: true}]",
        "trainer.optimizer.learning_rate=0.03",
        "trainer.optimizer.warmup_steps=0",
        "trainer.optimizer.eps=1e-12",
        "trainer.rollout_batch_size=32",
    )
    assert summary["status"] == "stopped"
    assert summary["steps"] < 10
    assert "kl_spike: kl is " in summary["stop_reason"]
    assert "--set trainer.optimizer.warmup_steps=30 (now 0)" in summary["stop_reason"]
    assert "--set trainer.optimizer.eps=1e-05 (now 1e-12)" in summary["stop_reason"]
    steps = [r["step"] for r in read_jsonl(tmp_path / "run" / "metrics.jsonl") if "tokens_generated" in r]
    assert (tmp_path / "run" / "checkpoints" / f"step-{steps[-1]:06d}").is_dir()
