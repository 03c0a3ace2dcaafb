"""Every study keeps the kit's promises; the smoke settings of those that need no outside data run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.plugins.registry import Registry
from rlhf_study.ablation.config import AblationConfig
from rlhf_testing import check_study

REGISTRY = Registry(disabled=())
STUDIES = Path(__file__).parents[1] / "rlhf_studies"
NAMES = [entry.name for entry in REGISTRY.entries("study") if entry.distribution == "rlhf-studies"]
OUTSIDE = {
    name
    for name in NAMES
    if {"data", "model"} & set(REGISTRY.load("study", name).model_fields) and name != "smollm2_arithmetic"
}
"""These read data sets that are not shipped."""
ABLATIONS = {name for name in NAMES if issubclass(REGISTRY.load("study", name), AblationConfig)}
BEFORE_A_RELEASE = {
    *(ABLATIONS - {"std_normalisation"}),
    *("hh_reward_models", "rubric_vs_bradley_terry", "smollm2_prm"),
    *("agent_claims", "data_mixes", "lookup_grpo", "tau_bench_gold", "taskmaster_turns"),
    *("pocket_voice", "speech_hacking", "speech_ratings", "speech_reward_pairs"),
    *("distilled", "multi_turn", "noise_control", "smollm2_probe", "step_rewards"),
}
"""`make test-all` alone runs them; the tests of the kit train too, in arithmetic_algorithms and smollm2_arithmetic."""
NOT_HERE = {"gsm8k_best_of_n", "bfcl_verdicts"}
"""These need what no test has: a real model's hours, an environment of another project."""
READ_RUNS = ["lambda_sweep", "calibration_top_decile", "monitor_lead_time"]
"""The first trains what the others read."""
TESTED = {*READ_RUNS, "arithmetic_algorithms", "smollm2_arithmetic"}
"""These have tests of their own."""
MANY_RUNS = {"pocket_methods", "pocket_recipe", "ensemble_vs_single", "composite_weights"}
"""Minutes each, of the same few steps of training as the others; `make test-all` alone runs them too."""
Command = Callable[..., tuple[int, str]]


@pytest.mark.parametrize("name", NAMES)
def test_conforms(name: str) -> None:
    cls: Any = REGISTRY.load("study", name)
    check_study(cls())


def test_every_folder_with_a_config_is_declared() -> None:
    assert sorted(NAMES) == sorted(file.parent.name for file in STUDIES.glob("*/config.py"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name in BEFORE_A_RELEASE else ())
        for name in sorted(set(NAMES) - OUTSIDE - TESTED - MANY_RUNS)
    ],
)
def test_smoke(command: Command, name: str, tmp_path: Path) -> None:
    smoke(command, [name], tmp_path)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(MANY_RUNS))
def test_smoke_of_many_runs(command: Command, name: str, tmp_path: Path) -> None:
    smoke(command, [name], tmp_path)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_smoke_of_studies_that_read_runs(command: Command, tmp_path: Path) -> None:
    smoke(command, READ_RUNS, tmp_path)


def smoke(command: Command, names: Sequence[str], folder: Path) -> None:
    code, said = command("study", "run", *names, "--smoke", "--out", folder)
    assert code == 0, said
    for name in names:
        assert (folder / name / "result.md").read_text().startswith("`rlhf study run ")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name in BEFORE_A_RELEASE else ())
        for name in sorted(OUTSIDE - NOT_HERE)
    ],
)
def test_smoke_with_outside_data(command: Command, name: str, tmp_path: Path, test_data: Path) -> None:
    code, said = command("study", "run", name, "--smoke", "--out", tmp_path)
    assert code == 0, said


def test_all_seeds_and_settings_reach_the_record_and_work_is_kept(command: Command, tmp_path: Path) -> None:
    words = ("study", "run", "pocket_truth", "--set", "limit=2", "--seeds", "0", "1", "--out", tmp_path)
    assert command(*words)[0] == 0
    figures = tmp_path / "pocket_truth" / "seed-1" / "figures.json"
    made = figures.stat().st_mtime_ns
    assert command(*words)[0] == 0
    assert figures.stat().st_mtime_ns == made
    text = (tmp_path / "pocket_truth" / "result.md").read_text()
    assert text.startswith("`rlhf study run pocket_truth --set limit=2 --seeds 0 1`")
    code, said = command("study", "run", "pocket_truth", "--out", tmp_path)
    assert (code, "other settings" in said) == (2, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("arithmetic_algorithms", "--set", "world=mars"), "pocket"),
        (("arithmetic_algorithms", "--set", "step=3"), "steps"),
        (("arithmetic_algorithms", "--jobs", "0"), "0"),
        (("arithmetic_algorithms", "--seeds", "one"), "whole numbers"),
        (("arithmetic_algorithm",), "did you mean 'arithmetic_algorithms'"),
    ],
)
def test_arguments_that_make_no_sense(command: Command, tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    code, said = command("study", "run", *words, "--out", tmp_path)
    assert code == 2
    assert says in said
    assert not list(tmp_path.glob("arithmetic*"))


@pytest.mark.slow
def test_every_evaluation_is_recorded_and_drawn(command: Command, tmp_path: Path) -> None:
    words = ("study", "run", "arithmetic_algorithms", "--smoke", "--out", tmp_path)
    assert command(*words)[0] == 0
    folder = tmp_path / "arithmetic_algorithms"
    summary = folder / "seed-0" / "rloo" / "summary.json"
    made = summary.stat().st_mtime_ns
    (folder / "seed-0" / "figures.json").unlink()
    assert command(*words)[0] == 0
    assert summary.stat().st_mtime_ns == made, "a complete run is not made again"
    assert not (summary.parent / "final").exists()
    curves = json.loads((folder / "result.json").read_text())["seeds"]["0"]["rloo"]
    assert curves["eval/reward/part/answer"][0] == [0, 1]
    assert (folder / "result.svg").stat().st_size > 10_000


@pytest.mark.slow
def test_what_is_recorded_of_a_run(command: Command, tmp_path: Path) -> None:
    code, said = command("study", "run", "smollm2_arithmetic", "--smoke", "--out", tmp_path)
    assert code == 0, said
    result = json.loads((tmp_path / "smollm2_arithmetic" / "result.json").read_text())
    training = result["seeds"]["0"]["training"]
    assert (training["steps"], training["completions"], len(training["reward_by_step"])) == (2, 32, 2)
    assert list(training["heldout_by_step"]) == ["0", "1", "2"]
    assert training["seconds"] > training["seconds_of_steps"] > 0
    assert training["cost"]["cpu_seconds"] > 0
