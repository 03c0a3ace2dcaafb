"""Studies that keep their runs: what was made with other options is not taken for what was asked for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.real import smollm2_prm
from scripts.studies import composite_weights, lambda_sweep, pocket_methods, prm_vs_orm, step_rewards

GOLD = {"eval/gold/value": 0.5, "eval/gold/hollow": 0.1, "eval/gold/right": 0.6, "eval/gold/words": 4.0}
SUMMARY = {"evaluation_before": GOLD, "evaluation_after": GOLD, "seconds": 1.0, "kl_last": 0.1}


class Trains(Exception):
    """A study starts a training."""


@pytest.fixture(autouse=True)
def _no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: Any) -> None:
        raise Trains(command[command.index("--run-dir") + 1])

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setattr("subprocess.Popen", run)


def keep(run: Path) -> None:
    (run / "final").mkdir(parents=True)
    (run / "summary.json").write_text(json.dumps(SUMMARY))
    (run / "metrics.jsonl").write_text(json.dumps({"step": 0, **GOLD}) + "\n")


def test_arms_of_other_steps(tmp_path: Path) -> None:
    keep(tmp_path / "prm-0")
    with pytest.raises(Trains) as first:
        step_rewards.compare(0, 10, [0], tmp_path)
    keep(Path(str(first.value)))
    assert list(step_rewards.compare(0, 10, [0], tmp_path)["arms"]) == ["lowest step, one advantage per completion"]
    with pytest.raises(Trains):
        step_rewards.compare(0, 20, [0], tmp_path)


def test_weightings_of_other_steps(tmp_path: Path) -> None:
    with pytest.raises(Trains) as first:
        composite_weights.policy(tmp_path, tmp_path / "rm", 0.7, 0, 10)
    keep(Path(str(first.value)))
    assert composite_weights.policy(tmp_path, tmp_path / "rm", 0.7, 0, 10)["gold"] == 0.5
    with pytest.raises(Trains):
        composite_weights.policy(tmp_path, tmp_path / "rm", 0.7, 0, 20)


def test_sweeps_of_other_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sweep(steps: int) -> None:
        monkeypatch.setattr(sys, "argv", ["lambda_sweep", "--steps", str(steps), "--out", str(tmp_path)])
        lambda_sweep.main()

    with pytest.raises(Trains) as first:
        sweep(10)
    keep(Path(str(first.value)))
    with pytest.raises(SystemExit, match="other settings"):
        sweep(20)
    with pytest.raises(Trains, match=r"lambda-0\.5"):  # the first is there
        sweep(10)


def test_models_of_another_world(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {prm_vs_orm.digest(mix) for mix in prm_vs_orm.MIXES}
    monkeypatch.setattr(prm_vs_orm, "WORLD", {**prm_vs_orm.WORLD, "chains": 10})
    names |= {prm_vs_orm.digest(mix) for mix in prm_vs_orm.MIXES}
    assert len(names) == 4


def test_runs_of_other_settings_are_refused(tmp_path: Path) -> None:
    for algo in smollm2_prm.ALGOS:
        keep(tmp_path / algo)
    with pytest.raises(SystemExit, match="other options"):
        smollm2_prm.train(tmp_path, "pocket", tmp_path, ["trainer.max_steps=3"])
    for algo in smollm2_prm.ALGOS:
        (tmp_path / algo / "final").rename(tmp_path / f"{algo}-final")
    with pytest.raises(Trains):
        smollm2_prm.train(tmp_path, "pocket", tmp_path, ["trainer.max_steps=3"])
    for algo in smollm2_prm.ALGOS:
        (tmp_path / f"{algo}-final").rename(tmp_path / algo / "final")
    smollm2_prm.train(tmp_path, "pocket", tmp_path, ["trainer.max_steps=3"])
    with pytest.raises(SystemExit, match="other options"):
        smollm2_prm.train(tmp_path, "pocket", tmp_path, ["trainer.max_steps=4"])


def test_a_missing_proxy_reward_is_no_score_of_zero() -> None:
    after = {**GOLD, "eval/completion_length/mean": 9.0}
    found = pocket_methods.figures({**SUMMARY, "evaluation_after": after, "gold_win_rate": 0.5})
    assert found["reward"] is None
    assert pocket_methods.spread([0.5, None]) == "-"
    assert pocket_methods.spread([0.5, 0.7]) == "0.600 (0.500 to 0.700)"
