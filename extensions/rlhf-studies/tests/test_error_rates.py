"""The monitor's error rates: what was recorded keeps its bounds, and a monitor beyond them fails the study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.config import RlhfError
from rlhf_studies.monitor_error_rates import run
from rlhf_studies.monitor_error_rates.config import MonitorErrorRatesConfig

RECORD = json.loads((Path(run.__file__).parent / "result.json").read_text())["seeds"]


def test_what_was_recorded_keeps_the_bounds_over_a_thousand_healthy_runs() -> None:
    seeds = list(RECORD.values())
    assert run.broken_bounds(seeds, MonitorErrorRatesConfig()) == []
    shares = {name: runs for name, runs, _ in run.shares(run.merged(seeds))}
    assert shares["healthy, warned"] >= 1000
    assert shares["sudden length, warned"] >= 1000


@pytest.mark.parametrize(
    ("hack", "said", "why"),
    [
        ("", {"warned": 9, "stopped": None}, "healthy, warned"),
        ("", {"warned": 9, "stopped": 12}, "healthy, stopped"),
        ("gold", {"warned": None, "stopped": None}, "gold, warned 0.0%"),
        ("sudden length", {"warned": 18, "stopped": None}, "sudden length, warned 0.0%"),
    ],
)
def test_a_monitor_that_cries_sleeps_or_is_late_breaks_a_bound(hack: str, said: dict[str, Any], why: str) -> None:
    kinds = {name: {**kind, "runs": [said] * 9} for name, kind in RECORD["0"]["kinds"].items() if kind["hack"] == hack}
    broken = run.broken_bounds([{"kinds": {**RECORD["0"]["kinds"], **kinds}}], MonitorErrorRatesConfig())
    assert any(text.startswith(why) for text in broken), broken


def test_a_bound_that_does_not_hold_fails_the_study(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "watched", lambda rows, ctx: {"warned": 1, "stopped": None})
    monkeypatch.setattr(run, "simulate", lambda family, steps, seed: [])
    with pytest.raises(RlhfError, match="beyond their bounds"):
        run.MonitorErrorRates(MonitorErrorRatesConfig(runs=1)).run(0, tmp_path)
