"""The learning studies: what is not run again, how a table comes about, and that every setting in them exists."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from rlhf_core.config.load import resolve
from rlhf_core.registry import Registry
from scripts.real.smollm2_arithmetic import compare, figures
from scripts.studies import arithmetic_algorithms as study

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("algorithm", study.ALGORITHMS)
def test_the_settings_of_an_algorithm_are_its_own_but_for_what_is_shared(algorithm: str) -> None:
    words = study.arguments(algorithm, 3, 40)
    sugar = {"trainer": {"name": algorithm}, "reward": {"name": "verifier"}}
    settings = [value for flag, value in pairwise(words) if flag == "--set"]
    config = resolve(Registry(disabled=()), settings=settings, sugar=sugar)
    assert config.trainer.updates_per_step == 4  # pyright: ignore[reportAttributeAccessIssue]
    assert config.trainer.kl.coefficient == 0  # pyright: ignore[reportAttributeAccessIssue]
    assert [s.label for s in config.dataset.sources] == ["copy1", "copy2", "copy3", "copy4"]
    names = {"grpo": "grpo_clip", "ppo": "ppo_clip"}
    assert config.loss is not None
    assert config.loss.name == names.get(algorithm, algorithm)


def test_share_of_the_best() -> None:
    def curve(*accuracies: float) -> list[study.Point]:
        return [study.Point(step, 2.0 * step, a, a / 2) for step, a in enumerate(accuracies)]

    rows = study.summarise({"a": {0: curve(0.1, 0.3), 1: curve(0.1, 0.5)}, "b": {0: curve(0.1, 0.2)}})
    assert rows[0] == pytest.approx(
        {
            "algorithm": "a",
            "seeds": 2,
            "before": 0.1,
            "mean": 0.4,
            "low": 0.3,
            "high": 0.5,
            "trained_before": 0.05,
            "trained": 0.2,
            "seconds": 2.0,
            "share_of_best": 1.0,
        }
    )
    assert rows[1]["share_of_best"] == pytest.approx(0.5)
    assert "| b | 1 | 0.100 | 0.200 | 0.200 to 0.200 | 50% |" in study.table(rows)


def test_gain_and_its_interval() -> None:
    found = compare([False] * 80 + [True] * 20, [True] * 70 + [False] * 10 + [True] * 20)
    assert found["before"] == {"accuracy": 0.2, "interval": [0.133, 0.289]}, "Wilson's, as in any table of it"
    assert found["after"]["accuracy"] == 0.9
    assert found["gain"]["points"] == 70
    low, high = found["gain"]["interval"]
    assert (low, high) == (pytest.approx(61.0, abs=0.1), pytest.approx(79.0, abs=0.1))


def test_what_is_recorded_of_a_run(finished_run: Path) -> None:
    found = figures(finished_run)
    assert (found["steps"], found["completions"], len(found["reward_by_step"])) == (3, 48, 3)
    assert list(found["heldout_by_step"]) == ["0", "3"]
    assert found["seconds"] > found["seconds_of_steps"] > 0


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "scripts/studies/arithmetic_algorithms.py",
        "--seeds",
        "0",
        "--runs",
        str(folder / "runs"),
        "--out",
        str(folder / "out"),
        *arguments,
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--algorithms", "gpro"], "invalid choice: 'gpro'"), (["--jobs", "0"], "'0' is not a number of at least 1")],
)
def test_arguments_that_make_no_sense(tmp_path: Path, arguments: Sequence[str], says: str) -> None:
    out = run(tmp_path, *arguments)
    assert out.returncode == 2
    assert says in out.stderr


@pytest.mark.slow
def test_a_complete_run_is_not_made_again(tmp_path: Path) -> None:
    assert "no complete run" in run(tmp_path, "--algorithms", "rloo", "--report").stderr
    first = run(tmp_path, "--algorithms", "rloo", "--steps", "1")
    assert first.returncode == 0, first.stderr
    assert "| rloo | 1 |" in first.stdout
    summary = tmp_path / "runs" / "rloo-0" / "summary.json"
    made = summary.stat().st_mtime_ns
    assert run(tmp_path, "--algorithms", "rloo", "--steps", "1").stdout == first.stdout
    assert summary.stat().st_mtime_ns == made
    assert run(tmp_path, "--algorithms", "rloo", "--steps", "2", "--report").returncode == 1, "those are other runs"
    record = json.loads((tmp_path / "out.json").read_text())
    assert record["algorithms"][0]["algorithm"] == "rloo"
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [r["step"] for r in rows] == ["0", "1"]
    assert (tmp_path / "out.png").stat().st_size > 10_000
