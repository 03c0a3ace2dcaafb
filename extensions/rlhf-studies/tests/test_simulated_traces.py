"""Presets of the reward-hacking monitor on simulated traces: what was recorded, and what it must not become."""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

from rlhf_core.config import RlhfError
from rlhf_studies.monitor_simulated_traces import run
from rlhf_studies.monitor_simulated_traces.config import MonitorSimulatedTracesConfig

RECORD = json.loads((Path(run.__file__).parent / "result.json").read_text())["seeds"]
CONFIG = MonitorSimulatedTracesConfig()


def test_what_was_recorded_keeps_the_bounds_over_200_runs_a_row() -> None:
    assert run.broken_bounds(RECORD, CONFIG) == []
    kinds = run.merged_of(RECORD)
    assert {len(kind["runs"]) for kind in kinds.values()} == {200}
    assert len(kinds) == 3 * (5 + 4 + 4)


def test_a_length_that_doubles_in_five_readings_is_seen_within_five() -> None:
    runs = run.merged_of(RECORD)["sequential: hacking, 20 steps"]
    assert (runs["begin"], runs["last"]) == (11, 16)
    assert run.warned(runs) >= 0.9


def test_what_the_monitor_prints_is_what_was_recorded() -> None:
    printed = tomllib.loads((files("rlhf_plugin_hacking") / "false_alarms.toml").read_text())
    assert printed == run.false_alarms(RECORD)


@pytest.mark.parametrize(
    ("row", "warned"),
    [
        ("sequential: clean, 20 steps", 9),
        ("sequential: clean, the policy learns, 300 steps", 9),
        ("classic: hacking, 20 steps", 17),
        ("sequential: hacking, an ensemble halves its growth, 40 steps", None),
    ],
)
def test_a_preset_that_cries_or_is_late_breaks_a_bound(row: str, warned: int | None) -> None:
    kinds = RECORD["0"]["kinds"]
    changed = {**kinds[row], "warned": [warned] * 9, "stopped": [None] * 9}
    broken = run.broken_bounds({0: {"kinds": {**kinds, row: changed}}}, CONFIG)
    assert [text.partition(": warned")[0] for text in broken] == [row]


def test_a_bound_that_does_not_hold_fails_the_study(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "watched", lambda rows, ctx, **settings: {"warned": None, "stopped": None})
    study = run.MonitorSimulatedTraces(CONFIG.model_copy(update={"runs": 1, "steps": (20,)}))
    with pytest.raises(RlhfError, match="hacking, 20 steps: warned in time"):
        study.run(0, tmp_path)
