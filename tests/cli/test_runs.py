"""`rlhf runs` and `rlhf trace` read what a run left, finished or not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Rlhf = Callable[..., Any]


@pytest.fixture
def unfinished(finished_run: Path, tmp_path: Path) -> Path:
    """The run as a crash after two steps leaves it, the last line torn."""
    folder = tmp_path / "many" / "broken-off"
    shutil.copytree(finished_run, folder)
    (folder / "summary.json").unlink()
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["step"] <= 2 and "eval/reward/mean" not in line]
    (folder / "metrics.jsonl").write_text("".join(kept) + '{"step": 3, "rew')
    return folder


def test_list(rlhf: Rlhf, unfinished: Path, finished_run: Path) -> None:
    shutil.copytree(finished_run, unfinished.with_name("done"))
    damaged = unfinished.with_name("damaged")
    damaged.mkdir()
    (damaged / "plan.json").write_text("{")
    rows = json.loads(rlhf("runs", "list", "--root", unfinished.parent, "--json").out)
    assert [(Path(r["run"]).name, r["status"]) for r in rows] == [
        ("broken-off", "unfinished"),
        ("damaged", "damaged"),
        ("done", "completed"),
    ]
    assert (rows[0]["steps"], rows[2]["steps"]) == (2, 3)
    text = rlhf("runs", "list", "--root", unfinished.parent).out
    assert "pocket/arithmetic" in text
    assert "damaged" in text


def test_list_of_nothing(rlhf: Rlhf) -> None:
    out = rlhf("runs", "list")
    assert out.code == 0
    assert "no runs in runs" in out.out
    assert rlhf("runs", "list", "--root", "elsewhere").code == 2


def test_show(rlhf: Rlhf, unfinished: Path, finished_run: Path) -> None:
    row = json.loads(rlhf("runs", "show", finished_run, "--json").out)
    summary = json.loads((finished_run / "summary.json").read_text())
    assert row["summary"] == summary
    assert row["checkpoints"] == [3]
    assert row["metrics"]["reward/mean"]["count"] == 3
    assert (row["algo"], row["loss"], row["reward"]) == ("grpo", "grpo_clip", "verifier")
    text = rlhf("runs", "show", unfinished).out
    assert "unfinished" in text
    assert f"rlhf train --resume {unfinished}" in text


def test_names_are_looked_up_in_runs(rlhf: Rlhf, finished_run: Path) -> None:
    shutil.copytree(finished_run, Path("runs") / "mine")
    assert rlhf("runs", "show", "mine").code == 0
    out = rlhf("runs", "show", "mien")
    assert out.code == 2
    assert "did you mean 'mine'?" in out.err
    assert rlhf("runs", "show", ".").code == 2


def test_compare(rlhf: Rlhf, unfinished: Path, finished_run: Path) -> None:
    plan = json.loads((unfinished / "plan.json").read_text())
    plan["config"]["trainer"]["optimizer"]["learning_rate"] = 0.5
    (unfinished / "plan.json").write_text(json.dumps(plan))
    result = json.loads(rlhf("runs", "compare", finished_run, unfinished, "--json").out)
    assert list(result["settings"]) == ["trainer.optimizer.learning_rate"]
    assert result["settings"]["trainer.optimizer.learning_rate"][1] == 0.5
    assert len(result["metrics"]["reward/mean"]) == 2
    assert result["metrics"]["eval/reward/mean"][1] is None
    text = rlhf("runs", "compare", finished_run, unfinished).out
    assert "trainer.optimizer.learning_rate" in text
    assert "unfinished" in text
    assert rlhf("runs", "compare", finished_run).code == 2


def test_trace_of_one_prompt(rlhf: Rlhf, finished_run: Path) -> None:
    row = json.loads(rlhf("trace", "show", finished_run, "--step", 2, "--json").out)
    prompt = row["prompt"]
    assert len(prompt["completions"]) == 8
    assert all(len(c["logprobs"]) == c["tokens"] == len(c["completion_ids"]) for c in prompt["completions"])
    assert sum(c["advantage"] for c in prompt["completions"]) == pytest.approx(0, abs=1e-4)
    metrics = [json.loads(line) for line in (finished_run / "metrics.jsonl").read_text().splitlines()]
    assert row["update"]["metrics"]["reward/mean"] == next(
        m["reward/mean"] for m in metrics if m["step"] == 2 and "reward/mean" in m
    )
    text = rlhf("trace", "show", finished_run, "--step", 2).out
    stages = [line.split()[0] for line in text.splitlines()[1:] if line and not line.startswith((" ", "other"))]
    assert stages == ["prompt", "rollouts", "rewards", "advantages", "update"]
    assert prompt["prompt"] in text
    assert "other prompts of step 2" in text


def test_trace_by_the_end_of_an_id(rlhf: Rlhf, finished_run: Path) -> None:
    rows = [json.loads(line) for line in (finished_run / "trace.jsonl").read_text().splitlines()]
    names = [r["prompt_id"] for r in rows if r["step"] == 1 and r["event"] == "prompt"]
    short = names[1].rsplit("/", 1)[-1]
    row = json.loads(rlhf("trace", "show", finished_run, "--step", 1, "--prompt", short, "--json").out)
    assert row["prompt"]["prompt_id"] == names[1]
    out = rlhf("trace", "show", finished_run, "--step", 1, "--prompt", short + "x")
    assert out.code == 2
    assert repr(short) in out.err


def test_trace_of_an_offline_run(rlhf: Rlhf, finished_run: Path, tmp_path: Path) -> None:
    (tmp_path / "off").mkdir()
    shutil.copy(finished_run / "plan.json", tmp_path / "off")
    (tmp_path / "off" / "trace.jsonl").write_text(
        '{"step": 1, "room": "step", "event": "update", "examples": ["a/1", "a/2"], "metrics": {"loss": 0.25}}\n'
    )
    row = json.loads(rlhf("trace", "show", tmp_path / "off", "--step", 1, "--json").out)
    assert row["update"]["stage"] == "step", "rows of earlier versions name the stage 'room'"
    text = rlhf("trace", "show", tmp_path / "off", "--step", 1, "--prompt", "a/2").out
    assert "a/1, a/2" in text
    assert "loss 0.25" in text


def test_trace_of_a_step_that_is_not_there(rlhf: Rlhf, finished_run: Path) -> None:
    out = rlhf("trace", "show", finished_run, "--step", 9)
    assert out.code == 2
    assert "steps 1 to 3" in out.err
    assert rlhf("trace", "show", "nothing", "--step", 1).code == 2
    assert rlhf("trace", "show", finished_run, "--step", 0).code == 2


def test_a_completed_run_has_nothing_left_to_do(rlhf: Rlhf, finished_run: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in finished_run.rglob("*")}
    out = rlhf("train", "--resume", finished_run)
    assert out.code == 0
    assert "is complete: nothing is left to do" in out.err
    assert "completed: 3 steps" in out.out
    assert {p: p.stat().st_mtime_ns for p in finished_run.rglob("*")} == before
