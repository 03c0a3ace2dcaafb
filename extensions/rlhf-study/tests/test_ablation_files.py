"""Ablations of a YAML file: what they expand to, what is refused, and what is made of finished runs, which are real."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import rlhf_core
from rlhf_core.config import UserError
from rlhf_study.ablation.config import AblationConfig, Settings
from rlhf_study.ablation.curves import Curve, interval, over_seconds, over_steps, read_curves
from rlhf_study.ablation.plot import draw
from rlhf_study.ablation.read import read_ablation
from rlhf_study.ablation.run import Ablation, filled, number_at
from rlhf_study.runs import Run, layered

BASE = {
    "reward": "verifier",
    "dataset": "pocket/arithmetic",
    "threads": 1,
    "trainer": {
        "name": "grpo",
        "steps": 2,
        "rollout_batch_size": 8,
        "eval_samples": 4,
        "eval_every": 1,
        "sampling": {"max_tokens": 8},
    },
}
METRIC = {"base": BASE, "metric": "eval/reward/mean"}
DPO = {
    "dataset": "pocket/assistant",
    "trainer": {"name": "dpo", "max_steps": 1, "sample_prompts": 4, "eval_samples": 4},
}
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
        ({**METRIC, "arms": {"a": {"loss": "grpo_clop"}}}, "did you mean 'grpo_clip'"),
        ({**METRIC, "grid": {"trainer.steps": 3}}, "trainer.steps"),
        ({**METRIC, "grids": RATES}, "did you mean 'grid'?"),
        (METRIC, "nothing varies"),
        ({"metric": "loss", "grid": RATES}, "base"),
        ({**METRIC, "grid": RATES, "seeds": []}, "seeds"),
        ({**METRIC, "grid": {"trainer.steps": [2, 2]}}, "'steps=2' is given twice"),
        ({**METRIC, "random": {"count": 2, "settings": {"a.b": {"normal": [0, 1]}}}}, "'log_uniform'"),
        ({**METRIC, "random": {"count": 2, "settings": {"a.b": {}}}}, "needs one way to draw it"),
        ({**METRIC, "random": {"count": 2, "settings": {"a.b": {"log_uniform": [0, 1]}}}}, "needs two bounds"),
        ({**METRIC, "random": {"count": 2, "cont": 2}}, "did you mean 'random.count'"),
        ({**METRIC, "grid": {"seed": [0, 1]}}, "seed is not a setting that varies"),
        ({**METRIC, "base": {**BASE, "seed": 5}, "grid": RATES}, "seed is not a setting that varies"),
        ({**METRIC, "arms": {"a": {"trainer": {"steps": 2}}}, "grid": {"trainer.steps": [3]}}, "steps varies twice"),
        ({**METRIC, "arms": {"a": {}, "b": {"trainer.steps": 2}}}, "b and a are the same run"),
        ({**METRIC, "grid": RATES, "claims": [{"says": "It helps", "arm": "a", "other": "b"}]}, "there is no arm 'a'"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_run(rlhf: Any, sections: dict[str, Any], said: str) -> None:
    ran = rlhf("study", "run", write(sections))
    assert ran.code == 2, ran.err
    assert said in ran.err
    assert not Path("runs").exists()


def test_arms_grid_and_draws_multiply_and_draws_repeat(tmp_path: Path) -> None:
    draws = {"count": 3, "seed": 7, "settings": {"trainer.steps": {"integer": [2, 90]}, "x.y": {"choice": ["a", "b"]}}}
    sections = {**METRIC, "arms": {"p": {"loss": "dapo"}}, "grid": RATES, "random": draws}
    config = read_ablation(write(sections, tmp_path / "s.yaml"))
    assert len(config.arms) == 1 * 2 * 3
    assert config.arms == read_ablation(tmp_path / "s.yaml").arms
    assert config.arms != read_ablation(tmp_path / "s.yaml", ["random.seed=8"]).arms
    settings = layered(*config.settings(list(config.arms)[-1], seed=5))
    assert settings["trainer"]["optimizer"] == {"learning_rate": 1e-3}
    assert settings["loss"] == {"name": "dapo"}
    assert settings["seed"] == 5
    assert settings["trainer"]["rollout_batch_size"] == 8
    assert settings["threads"] == 1, "the last digits depend on the number of threads"


def test_intervals_are_students() -> None:
    one = interval([1.0, 2.0, 3.0])
    assert one.mean == 2.0
    assert one.high == pytest.approx(2.0 + 4.30265 * 1 / 3**0.5)
    assert interval([0.5]).low is None


def test_last_values_of_two_metrics_are_set_against_each_other(tmp_path: Path) -> None:
    def run(kl: float, gold: float) -> dict[str, Curve]:
        return {name: Curve((0, 1), (0.0, 1.0), (0.0, value)) for name, value in (("kl", kl), ("gold", gold))}

    curves = {"a": {0: run(1.0, 0.5), 1: run(1.2, 0.6)}, "b": {0: run(3.0, 0.4), 1: run(3.3, 0.7)}, "c": {0: {}}}
    draw("one", ["gold"], curves, tmp_path / "without.svg")
    draw("one", ["gold"], curves, tmp_path / "with.svg", ("kl", "gold"))
    text = (tmp_path / "with.svg").read_text()
    assert "kl, last" in text
    assert "gold, last" in text
    assert "last" not in (tmp_path / "without.svg").read_text()


def test_seconds_of_steps_and_of_phases_count(tmp_path: Path) -> None:
    rows = [
        {"step": 1, "loss": 3.0, "time": {"step": 2.0, "update": 1.5}},
        {"step": 1, "eval/loss": 9.0},
        {"step": 2, "loss": 1.0, "time": {"update": 0.5, "data": 0.25}},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_curves(tmp_path, ["loss"])["loss"] == Curve((1, 2), (2.0, 2.75), (3.0, 1.0))


def test_curves_meet_at_common_steps_and_seconds() -> None:
    fast = Curve((0, 1, 2), (0.0, 1.0, 2.0), (0.0, 1.0, 2.0))
    slow = Curve((0, 2), (0.0, 4.0), (0.0, 4.0))
    steps, means = over_steps([fast, slow])
    assert steps == [0.0, 2.0]
    assert [one.mean for one in means] == [0.0, 3.0]
    seconds, means = over_seconds([fast, slow])
    assert seconds[-1] == 2.0
    assert means[-1].mean == pytest.approx((2.0 + 2.0) / 2)


@pytest.mark.slow
def test_an_arm_begins_with_what_was_made_before_it(tmp_path: Path) -> None:
    class Staged(AblationConfig):
        """A fine-tuned model, and a run that begins with it."""

        name: str = "staged"
        arms: Mapping[str, Settings] = {"dpo": {**DPO, "model": {"path": "@sft"}}}
        metric: str = "summary/gold_win_rate"
        also: tuple[str, ...] = ("eval/accuracy", "summary/reports/lora")

        def settings_before(self, seed: int) -> Mapping[str, tuple[Settings, ...]]:
            return {"sft": ({**DPO, "trainer": {"name": "sft", "max_steps": 1}}, {"seed": seed})}

    study = Ablation(Staged())
    figures = study.run(3, tmp_path)
    sft, dpo = (Run(tmp_path / name) for name in ("before/sft", "dpo"))
    assert dpo.config["model"]["path"] == str(sft.final)
    assert (sft.config["trainer"]["name"], sft.config["seed"], dpo.config["seed"]) == ("sft", 3, 3)
    assert figures["dpo"]["summary/gold_win_rate"][2] == [dpo.summary["gold_win_rate"]]
    assert "summary/reports/lora" not in figures["dpo"], "there are no adapters"
    assert "| arm | summary/gold_win_rate | seconds |" in study.table({3: figures})


def test_names_are_paths_wherever_they_are_in_settings(tmp_path: Path) -> None:
    settings = {"model": {"path": "@sft"}, "list": ["@sft", 1], "mail": "a@b"}
    path = str(tmp_path / "sft")
    assert filled(settings, {"sft": Path(path)}) == {"model": {"path": path}, "list": [path, 1], "mail": "a@b"}
    with pytest.raises(UserError, match="a setting is @stf") as caught:
        filled({"path": "@stf"}, {"sft": Path(path)})
    assert "@sft" in str(caught.value.fix)


def test_a_mapping_of_the_summary_counts_as_its_sum() -> None:
    assert number_at({"reports": {"lora": {"q": 10, "k": 20, "note": "x"}}}, ["reports", "lora"]) == 30.0
    assert number_at({"a": None}, ["a", "b"]) is None


def finished(arm: str, seed: int, rate: float) -> Path:
    """A run where the study looks for it."""
    folder = Path("runs/studies/s", f"seed-{seed}", arm)
    config = read_ablation(Path("s.yaml"))
    file = folder.with_name(f"{arm}.yaml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(layered(*config.settings(arm, seed)), sort_keys=False))
    settings = {"trainer": BASE["trainer"], "threads": 1, "trainer.optimizer.learning_rate": rate}
    data = {"reward": "verifier", "dataset": "pocket/arithmetic", "seed": seed}
    rlhf_core.train("grpo", settings=settings, run_dir=str(folder), progress=False, **data)
    return folder


@pytest.mark.slow
def test_finished_runs_are_taken_and_compared(rlhf: Any) -> None:
    sections = {**METRIC, "grid": {"trainer.optimizer.learning_rate": [1e-3]}, "seeds": [0, 1], "also": ["entropy"]}
    file = write(sections)
    checked = rlhf("study", "run", file, "--dry-run")
    assert checked.out.splitlines() == ["s: seeds 0, 1", "  learning_rate=0.001"]
    folders = [finished("learning_rate=0.001", seed, 1e-3) for seed in (0, 1)]
    ran = rlhf("study", "run", file)
    assert ran.code == 0, ran.err
    result = json.loads(Path("runs/studies/s/result.json").read_text())
    steps, seconds, values = result["seeds"]["0"]["learning_rate=0.001"]["eval/reward/mean"]
    assert steps == [0, 1, 2]
    assert seconds[-1] == pytest.approx(seconds_by_hand(folders[0]), abs=0.06)
    assert len(values) == 3
    assert "+-" in Path("runs/studies/s/result.md").read_text()
    drawing = Path("runs/studies/s/result.svg").read_text()
    assert drawing.count('id="axes_') == 4, "two metrics, each against steps and against seconds"
    assert (folders[0] / "final").is_dir()
    rows = [json.loads(line) for line in (folders[0] / "metrics.jsonl").read_text().splitlines()]
    (folders[0] / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows if row["step"] < 2))
    write({**sections, "also": ["grad_norm"]})
    ran = rlhf("study", "run", file)
    assert ran.code == 0, ran.err
    assert "| grad_norm |" in ran.out, "another metric is read from the runs that are there"
    assert "learning_rate=0.001, seed 0: ended early, its last value is of step 1" in ran.out
    write({**sections, "metric": "eval/reward/maen"})
    ran = rlhf("study", "run", file)
    assert (ran.code, "did you mean 'eval/reward/mean'" in ran.err) == (1, True), ran.err


def seconds_by_hand(run: Path) -> float:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return sum(row["time"]["step"] for row in rows if "step" in row.get("time", {}))


@pytest.mark.slow
def test_one_failure_is_reported_the_others_are_kept_and_the_command_goes_on(rlhf: Any) -> None:
    base = {**BASE, "dataset": {"name": "jsonl", "path": "rows.jsonl"}}
    rows = [{"prompt": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(16)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arms = {"bad": {"trainer.deadlines.rollout_s": 0.001}, "good": {}}
    file = write({"base": base, "metric": "reward/mean", "arms": arms, "seeds": [0]})
    first = rlhf("study", "run", file, "--jobs", "2")
    assert first.code == 1, first.err
    assert "1 seed failed" in first.err
    assert "bad: " in first.err
    made = Path("runs/studies/s/seed-0/good/summary.json").stat().st_mtime_ns
    write({"base": base, "metric": "reward/mean", "arms": {"good": {}, "slow": {"trainer.steps": 1}}, "seeds": [0]})
    again = rlhf("study", "run", file)
    assert again.code == 0, again.err
    assert Path("runs/studies/s/seed-0/good/summary.json").stat().st_mtime_ns == made
    assert "| slow |" in again.out
