"""The list of runs: how each stands, and what is wrong with a damaged one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rlhf_plugin_dashboard.head import Head, HeadReader, run_folders


def head(path: Path) -> Head:
    return HeadReader(path, path.name).read()


LONG_AGO = 1_500_000_000.0


def make_old(path: Path) -> None:
    for file in path.iterdir():
        os.utime(file, (LONG_AGO, LONG_AGO))


def test_runs_are_found_in_folders_of_folders_and_a_run_is_one_itself(root: Path) -> None:
    assert [p.relative_to(root).as_posix() for p in run_folders(root)] == ["first", "sweep/second"]
    assert list(run_folders(root / "first")) == [root / "first"]
    assert list(run_folders(root / "nowhere")) == []


def test_a_finished_run(root: Path) -> None:
    run = head(root / "first")
    assert (run.status, run.problem, run.algorithm, run.reward) == ("completed", "", "grpo", "verifier")
    assert (run.step, run.steps, run.metric) == (4, 4, "reward/mean")
    last = json.loads((root / "first" / "trace.jsonl").read_text().splitlines()[-1])["metrics"]
    assert run.value == last["reward/mean"]


def test_a_running_run_and_one_that_was_killed(growing) -> None:
    assert head(growing.path).status == "running"
    growing.append("metrics", 2)
    growing.append_half("metrics")
    run = head(growing.path)
    assert (run.status, run.step) == ("running", 1)
    make_old(growing.path)
    run = head(growing.path)
    assert run.status == "silent"
    assert run.to_json(LONG_AGO + 3600)["age"] == 3600
    growing.kill()
    run = head(growing.path)
    assert (run.status, run.problem) == ("interrupted", "it was killed: no process works on it")


def test_a_failed_and_a_stopped_run_say_why(growing) -> None:
    (growing.path / "failure.json").write_text(json.dumps({"status": "failed", "error": "ScoreError: too few"}))
    assert (head(growing.path).status, head(growing.path).problem) == ("failed", "ScoreError: too few")
    (growing.path / "failure.json").unlink()
    (growing.path / "summary.json").write_text(json.dumps({"status": "stopped", "stop_reason": "kl too large"}))
    assert (head(growing.path).status, head(growing.path).problem) == ("stopped", "kl too large")


DAMAGES = {
    "plan.json": ("{", "plan.json cannot be read: JSONDecodeError"),
    "summary.json": ("[1]", "summary.json cannot be read: it is not a JSON object"),
    "metrics.jsonl": ("{\n\x00\n", "metrics.jsonl: 2 lines hold no JSON object"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_run_is_listed_with_its_problem(root: Path, name: str) -> None:
    text, problem = DAMAGES[name]
    (root / "first" / name).write_text(text)
    run = head(root / "first")
    assert run.status == "damaged"
    assert run.problem.startswith(problem)


def test_the_plan_of_a_run_that_begins_is_empty_for_a_moment(growing) -> None:
    (growing.path / "plan.json").write_text("")
    assert head(growing.path).status == "running"
    make_old(growing.path)
    assert head(growing.path).status == "damaged"


def test_a_reader_follows_a_run_to_its_end(growing) -> None:
    reader = HeadReader(growing.path, "first")
    for step in (1, 2, 3):
        growing.append("metrics", 2 if step == 1 else 1)
        assert (reader.read().step, reader.read().status) == (step, "running")
    (growing.path / "summary.json").write_text('{"status": "completed"}')
    assert reader.read().status == "completed"


@pytest.mark.parametrize("config", [{}, {"trainer": 1, "model": "x", "reward": None}, {"model": {"path": None}}])
def test_a_plan_of_another_shape_is_shown_as_far_as_it_goes(root: Path, config: dict) -> None:
    (root / "first" / "plan.json").write_text(json.dumps({"config": config}))
    assert head(root / "first").status == "completed"
