"""Recorded results: every table is what the code makes of the recorded figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_core.plugins.entry_points import Entry
from rlhf_core.plugins.registry import Registry
from rlhf_studies.calibration_top_decile.run import cells
from rlhf_study.record import recorded
from rlhf_testing import make_context

STUDIES = Registry(disabled=()).entries("study")
OURS = [entry for entry in STUDIES if entry.distribution == "rlhf-studies"]


ROOT = Path(__file__).parents[1] / "rlhf_studies"
TABLES = sorted(
    {file.parent.name for file in ROOT.glob("*/result.json")} - {"calibration_top_decile", "verifier_cases"}
)


@pytest.mark.parametrize("name", TABLES)
def test_the_recorded_table_is_made_of_the_recorded_figures(name: str) -> None:
    study = Registry(disabled=()).load("study", name)().build(make_context())  # pyright: ignore[reportCallIssue]
    text, record = (ROOT / name / "result.md").read_text(), json.loads((ROOT / name / "result.json").read_text())
    made = study.table({int(seed): figures for seed, figures in record["seeds"].items()})
    assert " ".join(made.split()) in " ".join(text.split())


def test_the_recorded_deciles_are_those_of_the_table() -> None:
    from rlhf_plugin_reward_eval.stats import Bin

    folder = ROOT / "calibration_top_decile"
    text, record = (folder / "result.md").read_text(), json.loads((folder / "result.json").read_text())
    for reward, kinds in record["deciles"].items():
        for kind, rows in kinds.items():
            bins = [Bin(**{key: value for key, value in row.items() if key != "gap"}) for row in rows]
            assert f"| {reward} | {kind} | {' | '.join(map(str, cells(bins)))} |" in text


@pytest.mark.parametrize("entry", OURS, ids=lambda entry: entry.name)
def test_every_study_says_its_question_and_verdict(entry: Entry) -> None:
    found = recorded(entry.point.module)
    assert found.question.endswith("?")
    assert f"rlhf study run {entry.name}" in found.verdict or entry.name in found.verdict or not found.table
    assert found.folder is not None
    assert (found.folder / "result.json").is_file() == bool(found.table)


def test_what_a_model_reached_on_the_kissing_number_is_told_beside_the_baseline() -> None:
    folder = ROOT / "kissing"
    runs = json.loads((folder / "smollm2.json").read_text())
    baseline = json.loads((folder / "result.json").read_text())["seeds"]
    readme = (folder / "README.md").read_text()
    assert {f"{run['valid']} of {run['proposals']}" for run in runs.values()} == {"0 of 16", "0 of 12"}
    assert all(f"{run['valid']} of {run['proposals']}" in readme for run in runs.values())
    assert {run["best"] for run in runs.values()} == {22.0}
    assert {row["vectors"] for row in baseline.values()} == {582}
