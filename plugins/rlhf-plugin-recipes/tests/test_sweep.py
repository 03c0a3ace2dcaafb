"""Sweeps: what they expand to, what is refused, and what is made of finished runs; the runs are real."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import rlhf_core
from rlhf_plugin_recipes.sweep.curves import Curve, interval, over_seconds, over_steps
from rlhf_plugin_recipes.sweep.plan import SweepRun
from rlhf_plugin_recipes.sweep.read import read_sweep
from rlhf_plugin_recipes.sweep.report import best
from rlhf_plugin_recipes.sweep.run import run_all

BASE = {
    "algo": "grpo",
    "reward": "verifier",
    "dataset": "pocket/arithmetic",
    "threads": 1,
    "trainer": {
        "steps": 2,
        "rollout_batch_size": 8,
        "eval_samples": 4,
        "eval_every": 1,
        "sampling": {"max_tokens": 8},
    },
}
METRIC = {"base": BASE, "metric": "eval/reward/mean"}
RATES = {"trainer.optimizer.learning_rate": [1e-4, 1e-3]}


def write(sections: dict[str, Any], file: Path = Path("s.yaml")) -> Path:
    file.write_text(yaml.safe_dump(sections, sort_keys=False))
    return file


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({**METRIC, "grid": {"trainer.optimizer.lerning_rate": [1]}}, "learning_rate'?"),
        ({**METRIC, "grid": {"traner.steps": [1]}}, "'trainer'"),
        ({**METRIC, "grid": {"trainer.steps": [2, -1]}}, "steps=-1"),
        ({**METRIC, "points": {"a": {"loss": "grpo_clop"}}}, "did you mean 'grpo_clip'"),
        ({**METRIC, "grid": {"trainer.steps": 3}}, "trainer.steps is not a list"),
        ({**METRIC, "grids": RATES}, "did you mean 'grid'?"),
        (METRIC, "nothing varies"),
        ({"base": BASE, "grid": RATES}, "a sweep needs a metric"),
        ({"metric": "loss", "grid": RATES}, "a sweep needs a base"),
        ({**METRIC, "grid": RATES, "seeds": []}, "seeds must be a list"),
        ({**METRIC, "grid": {"trainer.steps": [2, 2]}}, "'steps=2' is given twice"),
        ({**METRIC, "random": {"count": 2, "settings": {"a.b": {"normal": [0, 1]}}}}, "no way to draw it"),
        ({**METRIC, "random": {"count": 2, "settings": {"a.b": {"log_uniform": [0, 1]}}}}, "needs two bounds"),
        ({**METRIC, "grid": {"seed": [0, 1]}}, "seed is not a setting that varies"),
        ({**METRIC, "base": {**BASE, "set": {"seed": 5}}, "grid": RATES}, "base.set decides seed of every run"),
        ({**METRIC, "base": {**BASE, "set": {next(iter(RATES)): 5}}, "grid": RATES}, "base.set decides trainer.opt"),
        ({**METRIC, "points": {"a": {"trainer": {"steps": 2}}}, "grid": {"trainer.steps": [3]}}, "steps varies twice"),
        ({**METRIC, "points": {"a": {}, "b": {"trainer.steps": 2}}}, "b and a are the same run"),
        ({**METRIC, "grid": RATES, "seeds": [True]}, "seeds must be a list"),
        ({**METRIC, "random": {"cont": 2, "settings": {}}}, "did you mean 'count'"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_run(rlhf: Any, sections: dict[str, Any], said: str) -> None:
    ran = rlhf("sweep", write(sections))
    assert ran.code == 2, ran.err
    assert said in ran.err
    assert not Path("runs").exists()


def test_points_grid_and_draws_multiply_and_draws_repeat(tmp_path: Path) -> None:
    draws = {"count": 3, "seed": 7, "settings": {"trainer.steps": {"integer": [2, 90]}, "x.y": {"choice": ["a", "b"]}}}
    sections = {**METRIC, "points": {"p": {"loss": "dapo"}}, "grid": RATES, "random": draws}
    sweep = read_sweep(write(sections, tmp_path / "s.yaml"))
    assert len(sweep.points) == 1 * 2 * 3
    assert sweep.points == read_sweep(tmp_path / "s.yaml").points
    assert sweep.points != read_sweep(tmp_path / "s.yaml", ["random.seed=8"]).points
    settings = sweep.settings(sweep.points[-1], seed=5)
    assert settings["trainer"]["optimizer"] == {"learning_rate": 1e-3}
    assert settings["loss"] == {"name": "dapo"}
    assert settings["seed"] == 5
    assert settings["trainer"]["rollout_batch_size"] == 8


def test_intervals_are_students() -> None:
    one = interval([1.0, 2.0, 3.0])
    assert one.mean == 2.0
    assert one.high == pytest.approx(2.0 + 4.30265 * 1 / 3**0.5)
    assert interval([0.5]).low is None


def test_curves_meet_at_common_steps_and_seconds() -> None:
    fast = Curve((0, 1, 2), (0.0, 1.0, 2.0), (0.0, 1.0, 2.0))
    slow = Curve((0, 2), (0.0, 4.0), (0.0, 4.0))
    steps, means = over_steps([fast, slow])
    assert steps == [0.0, 2.0]
    assert [one.mean for one in means] == [0.0, 3.0]
    seconds, means = over_seconds([fast, slow])
    assert seconds[-1] == 2.0
    assert means[-1].mean == pytest.approx((2.0 + 2.0) / 2)


def test_a_point_that_is_no_number_is_not_the_best(tmp_path: Path) -> None:
    sweep = read_sweep(write({**METRIC, "grid": RATES}, tmp_path / "s.yaml"))
    broken, good = (Curve((0,), (0.0,), (value,)) for value in (math.nan, 0.1))
    name = "eval/reward/mean"
    assert best(sweep, {"broken": {0: {name: broken}}, "good": {0: {name: good}}}) == "good"
    assert best(sweep, {"broken": {0: {name: broken}}}) is None


def test_a_run_computes_alike_whatever_runs_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    given: list[Any] = []

    def start(words: Any, stdout: Any, stderr: Any, extra: Any) -> Any:
        given.append(extra)
        return subprocess.Popen(["false"])

    monkeypatch.setattr("rlhf_plugin_recipes.sweep.run.start", start)
    sweep = read_sweep(write({**METRIC, "grid": RATES}, tmp_path / "s.yaml"))
    for jobs in (1, 4):
        runs = [SweepRun(point, 0, sweep.settings(point, 0), tmp_path / point.label) for point in sweep.points]
        run_all(runs, jobs, tmp_path / "logs", print)
    assert len(given) == 4
    assert all(one == given[0] for one in given), "the last digits depend on the number of threads"


@pytest.mark.slow
def test_finished_runs_are_taken_and_compared(rlhf: Any) -> None:
    rate = "trainer.optimizer.learning_rate"
    file = write({**METRIC, "grid": {rate: [1e-3]}, "seeds": [0, 1], "also": ["entropy", "entropi"]})
    planned = json.loads(rlhf("sweep", file, "--dry-run", "--json").out)
    assert len({row["folder"] for row in planned}) == 2
    for row in planned:
        settings = {"trainer": BASE["trainer"], "threads": 1, rate: 1e-3}
        data = {"reward": "verifier", "dataset": "pocket/arithmetic", "seed": row["seed"]}
        rlhf_core.train("grpo", settings=settings, run_dir=row["folder"], progress=False, **data)
    ran = rlhf("sweep", file)
    assert ran.code == 0, ran.err
    assert "2 finished before, 0 to do" in ran.err
    result = json.loads(Path("runs/sweeps/s/results.json").read_text())
    assert [point["seeds_text"] for point in result["points"]] == ["2 of 2"]
    last = [run["final"]["eval/reward/mean"] for run in result["runs"]]
    assert result["points"][0]["final"]["eval/reward/mean"]["mean"] == pytest.approx(sum(last) / 2)
    assert "no run has the metric 'entropi': did you mean 'entropy'?" in ran.out
    assert "+-" in Path("runs/sweeps/s/results.md").read_text()
    drawing = Path("runs/sweeps/s/curves.svg").read_text()
    assert drawing.count('id="axes_') == 4, "two metrics, each against steps and against seconds"
    assert result["runs"][0]["seconds"] == pytest.approx(seconds_by_hand(Path(planned[0]["folder"])))
    assert {run["stopped"] for run in result["runs"]} == {None}
    folder = Path(planned[0]["folder"])
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "status": "stopped", "stop_reason": "kl is 9"}))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row.pop("entropy", None)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = rlhf("sweep", file)
    assert "seed 0: ended early: kl is 9; its last values are of then" in ran.out
    assert "seed 0: has no 'entropy', and is not in its mean" in ran.out
    shutil.rmtree(folder / "final")
    assert [row["finished"] for row in json.loads(rlhf("sweep", file, "--dry-run", "--json").out)].count(False) == 1


def seconds_by_hand(run: Path) -> float:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return sum(row["time"]["step"] for row in rows if "step" in row.get("time", {}))


@pytest.mark.slow
def test_one_failure_is_reported_the_others_are_kept_and_the_command_goes_on(rlhf: Any) -> None:
    base = {**BASE, "dataset": {"name": "jsonl", "path": "rows.jsonl"}}
    rows = [{"prompt": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(16)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    points = {"good": {}, "bad": {"trainer.deadlines.rollout_s": 0.001}}
    file = write({"base": base, "metric": "reward/mean", "points": points, "seeds": [0]})
    first = rlhf("sweep", file, "--jobs", "2")
    assert first.code == 1, first.err
    assert "1 of 2 runs failed" in first.err
    result = json.loads(Path("runs/sweeps/s/results.json").read_text())
    assert [run["status"] for run in result["runs"]] == ["done", "failed"]
    assert result["runs"][1]["error"]
    again = rlhf("sweep", file, "--jobs", "2")
    assert again.code == 1
    assert "1 finished before, 1 to do" in again.err
