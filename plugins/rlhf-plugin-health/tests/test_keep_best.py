"""The checkpoint with the best evaluation is kept, named, and right after a run that was cut off."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_core.hooks import StepMetrics, StopRun
from rlhf_plugin_health.config import KeepBestConfig
from rlhf_plugin_health.keep_best import KeepBest
from rlhf_testing import make_context

METRIC = "eval/reward/mean"
RUN = (
    *("train", "--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic", "--set", "threads=1"),
    *("--set", "trainer.rollout_batch_size=16", "--set", "trainer.sampling.max_tokens=8"),
    *("--set", "trainer.eval_samples=16", "--set", "trainer.gold_samples=0", "--set", "trainer.keep_checkpoints=1"),
    *("--set", "trainer.eval_every=1", "--set", "trainer.checkpoint_every=1"),
)


def main(*words: str) -> int:
    from rlhf_core.cli.main import main as rlhf

    with pytest.raises(SystemExit) as caught:
        rlhf([*words])
    return int(caught.value.code or 0)


@pytest.fixture
def monitor(tmp_path: Path) -> KeepBest:
    """In a run whose checkpoints of steps 1 and 2 are there, each with a model that names its step."""
    for step in (1, 2):
        model = tmp_path / "checkpoints" / f"step-{step}" / "model"
        model.mkdir(parents=True)
        (model / "config.json").write_text(str(step))
    hooks = SimpleNamespace(manager=SimpleNamespace(register=lambda *_, **__: None), stop_reason=None)
    checkpoints = SimpleNamespace(path=lambda step: tmp_path / "checkpoints" / f"step-{step}")
    session = SimpleNamespace(hooks=hooks, dir=SimpleNamespace(path=tmp_path), main=True, checkpoints=checkpoints)
    return KeepBest(KeepBestConfig(), make_context().with_(session=session))


def evaluated(monitor: KeepBest, step: int, value: float) -> None:
    monitor.rlhf_eval_end(StepMetrics(step, {METRIC: value}))
    monitor.rlhf_checkpoint_saved(SimpleNamespace(step=step))


def kept(monitor: KeepBest) -> tuple[str, int]:
    return (monitor.folder / "config.json").read_text(), json.loads((monitor.folder / "best.json").read_text())["step"]


def test_a_worse_evaluation_leaves_the_best_where_it_is(monitor: KeepBest) -> None:
    evaluated(monitor, 0, 0.9)
    evaluated(monitor, 1, 0.5)
    evaluated(monitor, 2, 0.4)
    assert kept(monitor) == ("1", 1)
    best = {"metric": METRIC, "start": 0.9, "step": 1, "value": 0.5, "folder": "best", "not_compared": []}
    assert monitor.report["best"] == best


def test_of_a_loss_the_least_is_best(monitor: KeepBest) -> None:
    monitor.sign = -1
    evaluated(monitor, 1, 0.5)
    evaluated(monitor, 2, 0.4)
    assert kept(monitor) == ("2", 2)


def test_a_copy_that_a_kill_prevented_is_made_up_for(monitor: KeepBest) -> None:
    monitor.load_state_dict({"best": (2, 0.5), "start": 0.1})
    assert kept(monitor) == ("2", 2)


def test_a_copy_of_a_lost_checkpoint_still_counts(monitor: KeepBest) -> None:
    evaluated(monitor, 2, 0.5)
    monitor.load_state_dict({"best": (1, 0.2), "start": 0.1})
    assert monitor.best == (2, 0.5)
    assert kept(monitor) == ("2", 2)


def test_an_unknown_metric_ends_the_run_before_its_first_step(monitor: KeepBest) -> None:
    with pytest.raises(StopRun, match=f"no evaluation has '{METRIC}'; there are eval/loss"):
        monitor.rlhf_eval_end(StepMetrics(0, {"eval/loss": 1.0}))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["trainer.eval_samples=0"], "nothing to compare: trainer.eval_samples is 0"),
        (["trainer.eval_every=3", "trainer.checkpoint_every=2"], "trainer.eval_every is 3, trainer.checkpoint_every 2"),
        (["trainer.eval_every=0"], "trainer.eval_every is 0"),
    ],
)
def test_a_run_without_what_it_needs_is_refused(settings: list[str], says: str, capsys: Any, tmp_path: Path) -> None:
    words = [w for s in ("monitors=[keep_best]", *settings) for w in ("--set", s)]
    assert main(*RUN, *words, "--dry-run", "--run-dir", str(tmp_path / "run")) == 2
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_a_resumed_run_keeps_the_same_model(tmp_path: Path) -> None:
    keep = ("--set", "monitors=[keep_best]")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main(*RUN, *keep, "--set", "trainer.steps=3", "--run-dir", str(whole)) == 0
    assert main(*RUN, *keep, "--set", "trainer.steps=1", "--run-dir", str(cut)) == 0
    assert main("train", "--resume", str(cut), "--set", "trainer.steps=3") == 0
    best = json.loads((whole / "summary.json").read_text())["reports"]["best"]
    assert json.loads((cut / "summary.json").read_text())["reports"]["best"] == best
    weights = [(run / "best" / "model.safetensors").read_bytes() for run in (whole, cut)]
    assert weights[0] == weights[1]
    values = {row["step"]: row[METRIC] for row in map(json.loads, (whole / "metrics.jsonl").open()) if METRIC in row}
    assert best["value"] == max(value for step, value in values.items() if step) == values[best["step"]]
    assert main("generate", "--model", str(whole / "best"), "--prompt", "What is 1 + 1?", "--max-tokens", "4") == 0
