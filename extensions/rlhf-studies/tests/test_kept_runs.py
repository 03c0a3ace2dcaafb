"""What is done is kept, and what was made with other settings is not taken for what was asked for."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.types.errors import RlhfError, UserError
from rlhf_studies.lambda_sweep.config import LambdaSweepConfig
from rlhf_studies.pocket_methods.run import figures
from rlhf_study.runner import measure
from rlhf_study.runs import train

GOLD = {"eval/gold/value": 0.5, "eval/gold/hollow": 0.1, "eval/gold/right": 0.6, "eval/gold/words": 4.0}
SUMMARY = {"evaluation_before": GOLD, "evaluation_after": GOLD, "seconds": 1.0, "kl_last": 0.1, "gold_win_rate": 0.5}
CONFIG = {"trainer": {"name": "grpo", "steps": 3}}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that would have trained; each leaves a summary."""
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        if "--run-dir" in command:
            folder = Path(command[command.index("--run-dir") + 1])
            folder.mkdir(parents=True)
            (folder / "summary.json").write_text(json.dumps(SUMMARY))
        return subprocess.CompletedProcess(command, 0, "", "said")

    monkeypatch.setattr("subprocess.run", run)
    return commands


def test_a_finished_run_is_found_again(trained: list[list[str]], tmp_path: Path) -> None:
    first, again = train(tmp_path / "a", CONFIG), train(tmp_path / "a", CONFIG)
    assert len(trained) == 1
    assert first.summary == again.summary == SUMMARY
    assert first.log == "said"


def test_a_run_of_other_settings_is_refused(trained: list[list[str]], tmp_path: Path) -> None:
    train(tmp_path / "a", CONFIG)
    with pytest.raises(UserError, match="other settings"):
        train(tmp_path / "a", CONFIG, {"trainer": {"steps": 4}})
    assert len(trained) == 1


def test_an_interrupted_run_goes_on(trained: list[list[str]], tmp_path: Path) -> None:
    train(tmp_path / "a", CONFIG)
    (tmp_path / "a" / "summary.json").unlink()
    (tmp_path / "a" / "plan.json").write_text("{}")
    train(tmp_path / "a", CONFIG)
    assert trained[1][-2:] == ["--resume", str(tmp_path / "a")]


def test_a_failed_run_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "the loss is not finite")

    monkeypatch.setattr("subprocess.run", run)
    with pytest.raises(RlhfError, match="not finite"):
        train(tmp_path / "a", CONFIG)


class Counted:
    """A study that counts how often it is run."""

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        self.seeds.append(seed)
        return {"value": seed / 2, "by_step": {1: 0.5}}

    def table(self, results: Any) -> str:
        return str(results)


def test_a_finished_seed_is_found_again_and_other_settings_are_refused(tmp_path: Path) -> None:
    study, config = Counted(), LambdaSweepConfig(steps=3)
    first = measure(config, 1, tmp_path, study)
    assert first == measure(config, 1, tmp_path, study) == {"value": 0.5, "by_step": {"1": 0.5}}
    assert study.seeds == [1]
    with pytest.raises(UserError, match="other settings"):
        measure(LambdaSweepConfig(steps=4), 1, tmp_path, study)
    measure(LambdaSweepConfig(steps=3, seeds=(7, 8)), 1, tmp_path, study)  # which seeds are asked for decides nothing


def test_a_missing_proxy_reward_is_no_score_of_zero() -> None:
    after = {**GOLD, "eval/completion_length/mean": 9.0}
    assert figures({**SUMMARY, "evaluation_after": after})["reward"] is None
