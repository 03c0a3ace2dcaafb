"""Filtering by confidence: the choice itself, the command with a real reward, and whole flywheels."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data import PreferencePair, read_jsonl
from rlhf_plugin_datagen.confidence import confidences, summary, top
from rlhf_plugin_pocket.data import load_pairs
from tests.waiting import wait_for

Command = Callable[..., tuple[int, str]]


def test_the_top_share_of_each_stratum_is_kept_and_the_missing_never() -> None:
    values = [0.1, 0.9, None, 0.5, 0.7, 0.2]
    assert top(values, 0.5, [""] * 6) == [1, 3, 4]
    assert top(values, 0.5, ["a", "a", "a", "b", "b", "b"]) == [0, 1, 3, 4]
    assert top(values, 0.01, ["a", "a", "a", "b", "b", "b"]) == [1, 4]
    assert top([None, None], 1.0, ["", ""]) == []


def test_ranking_by_size_by_sign_and_by_chance() -> None:
    pairs = [PreferencePair(f"p/{i}", ({"role": "user", "content": "?"},), "a", "b") for i in range(400)]
    assert confidences([-2.0, 1.0, None], pairs[:3], "absolute", 0) == [2.0, 1.0, None]
    assert confidences([-2.0, 1.0, None], pairs[:3], "signed", 0) == [-2.0, 1.0, None]
    drawn = [set(top(confidences([], pairs, "random", seed), 0.5, [""] * 400)) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1]
    assert 70 < len(drawn[0] & drawn[2]) < 130  # half of each other, by chance


def test_quarters_by_size_of_the_margin() -> None:
    found = summary([4.0, -0.1, 0.2, -3.0, None, 1.0, 2.0, 0.3, -0.4], [0])["quarters"]
    assert [quarter["pairs"] for quarter in found] == [2, 2, 2, 2]
    assert [quarter["mean_abs_margin"] for quarter in found] == pytest.approx([0.15, 0.35, 1.5, 3.5])
    assert [quarter["label_denied"] for quarter in found] == [0.5, 0.5, 0.0, 0.5]
    assert summary([None], [])["quarters"] == []


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


PAIRS = [
    {"id": str(i), "prompt": "Hi?", "chosen": "a " * c, "rejected": "b " * r, "topic": "x" if i < 4 else "y"}
    for i, (c, r) in enumerate([(1, 9), (1, 5), (4, 5), (6, 3), (2, 3), (9, 1)])
]
LENGTH = ("--reward", "programmatic", "--set", "mode=continuous", "--set", "length={max: 1, zero_at: 9}")
"""Scores 1 for a word down to 0 for nine: the margins are 1, 0.5, 0.125, -0.375, 0.125 and -1."""


@pytest.mark.slow
def test_the_command_keeps_what_the_reward_is_surest_of(tmp_path: Path, command: Command) -> None:
    source, out = write(tmp_path / "pairs.jsonl", PAIRS), tmp_path / "kept.jsonl"

    def kept(*options: str) -> dict[str, float]:
        code, err = command("data", "filter", "--dataset", source, "--output", out, *options)
        assert code == 0, err
        return {r["id"]: r["confidence"] for r in read_jsonl(out)}

    assert kept(*LENGTH) == {"0": 1.0, "1": 0.5, "5": -1.0}
    assert kept(*LENGTH, "--by", "signed") == {"0": 1.0, "1": 0.5, "2": 0.125}
    assert set(kept(*LENGTH, "--stratify", "topic")) == {"0", "1", "5"}
    assert set(kept(*LENGTH, "--stratify", "topic", "--keep", "0.25")) == {"0", "5"}
    assert len(kept("--by", "random", "--keep", "0.34")) == 2
    code, err = command("data", "filter", "--dataset", source, "--output", out, "--reward", "verifier")
    assert (code, "no score for any pair" in err) == (2, True)  # there are no reference answers
    again = tmp_path / "again.jsonl"
    kept(*LENGTH)
    code, err = command("data", "filter", "--dataset", out, "--output", again, *LENGTH)
    assert code == 0, err
    assert set(next(read_jsonl(again))) == {"id", "prompt", "chosen", "rejected", "confidence"}


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        (PAIRS, (), "say which reward"),
        (PAIRS, (*LENGTH, "--stratify", "subject"), "no column 'subject'"),
        (PAIRS, ("--model", "./nowhere"), "holds no reward model"),
        ([{**r, "rejected": r["chosen"]} for r in PAIRS], LENGTH, "chosen and rejected are the same"),
        ([{**r, "chosen": ""} for r in PAIRS], LENGTH, "chosen or rejected is empty"),
    ],
)
def test_what_cannot_be_filtered_is_refused(
    rows: list[dict[str, Any]], options: tuple[str, ...], words: str, tmp_path: Path, command: Command
) -> None:
    source, out = write(tmp_path / "pairs.jsonl", rows), tmp_path / "kept.jsonl"
    code, err = command("data", "filter", "--dataset", source, "--output", out, *options)
    assert code == 2, err
    assert words in err
    assert not out.exists()


def test_too_few_pairs_for_the_cycles_are_refused(tmp_path: Path, command: Command) -> None:
    source, run = write(tmp_path / "pairs.jsonl", PAIRS), tmp_path / "wheel"
    code, err = command("data", "flywheel", "--dataset", source, "--set", "x=1", "--run-dir", run)
    assert code == 2
    assert "too few" in err
    assert not run.exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_flywheel_goes_on_where_it_was_killed(tmp_path: Path, call: Callable[..., Any]) -> None:
    source, wheel = write(tmp_path / "small.jsonl", load_pairs("train")[:72]), tmp_path / "wheel"
    words = ["data", "flywheel", "--dataset", str(source), "--cycles", "1", "--same-updates", "--run-dir", str(wheel)]
    for setting in ("trainer.batch_size=20", "threads=1", "trainer.checkpoint_every=1", "dataset.limit=60"):
        words += ["--set", setting]
    command = [sys.executable, "-m", "rlhf_core.cli.main", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def in_the_second_training() -> bool:
        assert process.poll() is None
        return bool(list(wheel.glob("cycle1-run/checkpoints/*")))

    wait_for(in_the_second_training, "a checkpoint of the second training", 900)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    first = (wheel / "cycle0-run" / "summary.json").stat().st_mtime_ns
    out = call(*words, "--json")
    assert out.code == 0, out.err
    assert (wheel / "cycle0-run" / "summary.json").stat().st_mtime_ns == first  # not trained again
    assert out.err.count("rlhf train --resume") == 1
    trainings = json.loads(out.out)["trainings"]
    count = trainings[0]["pairs"]
    assert count > 50
    assert [(r["name"], r["pairs"]) for r in trainings] == [(f"cycle{c}", round(count / 2**c)) for c in range(2)]
    assert trainings[1]["change"] == pytest.approx(trainings[1]["accuracy"] - trainings[0]["accuracy"])
    half = {r["id"]: r["confidence"] for r in read_jsonl(wheel / "cycle1.jsonl")}
    assert set(half) < {r["id"] for r in read_jsonl(wheel / "cycle0.jsonl")}
    assert len(list(read_jsonl(wheel / "control1.jsonl"))) == len(half)
    steps = [json.loads((wheel / f"cycle{c}-run" / "summary.json").read_text())["steps"] for c in range(2)]
    assert len(set(steps)) == 1
    other = call(*words, "--keep", "0.3")
    assert (other.code, "other settings" in other.err) == (2, True)
