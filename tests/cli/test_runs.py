"""`rlhf runs` and `rlhf trace` read what a run left, finished or not."""

from __future__ import annotations

import json
import os
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
    rows = json.loads(rlhf("runs", "list", "--root", unfinished.parent, "--sort", "name", "--json").out)
    assert [(Path(r["run"]).name, r["status"]) for r in rows] == [
        ("broken-off", "interrupted"),
        ("damaged", "damaged"),
        ("done", "completed"),
    ]
    assert (rows[0]["steps"], rows[2]["steps"]) == (2, 3)
    text = rlhf("runs", "list", "--root", unfinished.parent).out
    assert "damaged" in text
    assert rows[2]["last_reward"] is not None
    assert rows[2]["started"][:4].isdigit()


NOW = 1_750_000_000.0
"""In June 2025."""


def make(root: Path, name: str, finished_run: Path, when: float, **changes: Any) -> None:
    shutil.copytree(finished_run, root / name, ignore=shutil.ignore_patterns("checkpoints", "final", "trace.jsonl"))
    plan = json.loads((root / name / "plan.json").read_text())
    plan["config"]["trainer"]["name"] = changes.get("algo", "grpo")
    (root / name / "plan.json").write_text(json.dumps(plan))
    lines = (root / name / "metrics.jsonl").read_text().splitlines()[: changes.get("lines")]
    (root / name / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    os.utime(root / name / "plan.json", (when, when))


def test_list_fits_a_terminal(rlhf: Rlhf, finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, now = tmp_path / "many", NOW
    make(root, "grpo-20260131-142501-with-a-long-name-of-its-own", finished_run, now)
    make(root, "reinforce", finished_run, now - 60, algo="reinforce_pp_baseline")
    make(root, "old", finished_run, now - 3 * 365 * 86400, algo="sft")
    monkeypatch.setenv("COLUMNS", "80")
    lines = rlhf("runs", "list", "--root", root).out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["run", "started", "status", "algo", "steps", "reward", "loss"]
    assert lines[2].startswith("old ")
    assert "2022" in lines[2]
    assert lines[4].startswith("grpo-20260131")
    monkeypatch.setenv("COLUMNS", "200")
    wide = rlhf("runs", "list", "--root", root).out
    assert {"model", "dataset", "scored"} <= set(wide.splitlines()[0].split())
    assert "pocket/arithmetic" in wide
    assert "with-a-long-name-of-its-own" in wide


def test_list_sorts_and_filters(rlhf: Rlhf, finished_run: Path, tmp_path: Path) -> None:
    root, now = tmp_path / "many", NOW
    make(root, "b", finished_run, now, algo="sft")
    make(root, "a", finished_run, now - 60, lines=2)
    make(root, "c", finished_run, now - 120)

    def names(*options: object) -> str:
        rows = json.loads(rlhf("runs", "list", "--root", root, *options, "--json").out)
        return "".join(Path(row["run"]).name for row in rows)

    assert names() == "cab"
    assert names("--reverse") == "bac"
    assert names("--sort", "name") == "abc"
    assert names("--sort", "steps")[0] == "a"
    assert names("--algo", "sft") == "b"
    assert names("--dataset", "arith", "--model", "pock", "--status", "completed", "--algo", "grpo") == "ca"
    assert rlhf("runs", "list", "--root", root, "--sort", "stepz").code == 2
    assert "none of the 3 runs" in rlhf("runs", "list", "--root", root, "--algo", "dpo").out


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
    assert "interrupted" in text
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
    assert "interrupted" in text
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


def test_trace_shows_what_monitors_said_in_a_step(rlhf: Rlhf, finished_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "warned"
    shutil.copytree(finished_run, run, ignore=shutil.ignore_patterns("checkpoints", "final"))
    row = {"step": 2, "event": "warning", "monitor": "health", "text": "entropy fell to 0.01", "stops": False}
    with (run / "trace.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    assert "health: entropy fell to 0.01" in rlhf("trace", "show", run, "--step", 2).out
    assert "entropy fell" not in rlhf("trace", "show", run, "--step", 1).out
    assert json.loads(rlhf("trace", "show", run, "--step", 2, "--json").out)["warnings"] == [row]
