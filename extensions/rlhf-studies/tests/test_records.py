"""Recorded results: every table is what the code makes of the recorded figures."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from rlhf_core.plugins.entry_points import Entry
from rlhf_core.plugins.registry import Registry
from rlhf_studies.arithmetic_algorithms.run import by_algorithm, summarise
from rlhf_studies.calibration_top_decile.run import cells
from rlhf_study.record import recorded
from rlhf_testing import make_context

STUDIES = Registry(disabled=()).entries("study")
OURS = [entry for entry in STUDIES if entry.distribution == "rlhf-studies"]


def load_records() -> ModuleType:
    """``records.py`` beside this file; tests are no package."""
    spec = importlib.util.spec_from_file_location("study_records", Path(__file__).with_name("records.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RECORDS = load_records()
TABLES = sorted({*RECORDS.OLDER, "pocket_truth", "monitor_error_rates", "noise_control"} - {"arithmetic_algorithms"})


@pytest.mark.parametrize("name", TABLES)
def test_the_recorded_table_is_made_of_the_recorded_figures(name: str) -> None:
    study = Registry(disabled=()).load("study", name)().build(make_context())  # pyright: ignore[reportCallIssue]
    text = (RECORDS.ROOT / name / "result.md").read_text()
    made = study.table(RECORDS.figures(name))
    assert " ".join(made.split()) in " ".join(text.split())


def test_the_recorded_means_of_the_algorithms_are_those_of_their_evaluations() -> None:
    record = json.loads((RECORDS.ROOT / "arithmetic_algorithms" / "result.json").read_text())
    made = summarise(by_algorithm(RECORDS.figures("arithmetic_algorithms")))
    for row, kept in zip(made, record["algorithms"], strict=True):
        assert row.pop("algorithm") == kept.pop("algorithm")
        assert row == pytest.approx(kept, abs=1e-2), "the CSV has rounded figures"


def test_the_recorded_deciles_are_those_of_the_table() -> None:
    from rlhf_plugin_reward_eval.stats import Bin

    folder = RECORDS.ROOT / "calibration_top_decile"
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
