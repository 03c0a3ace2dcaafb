"""The status of each signal: green, amber, red and grey, each with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlhf_plugin_report.charts import draw
from rlhf_plugin_report.monitor_status import MonitorStatus, monitor_statuses, thresholds
from rlhf_plugin_report.read import read_page
from rlhf_plugin_report.stored import lines_of, open_run

from .conftest import page_of


def statuses(run: Path) -> dict[str, MonitorStatus]:
    found = open_run(str(run))
    trace = lines_of(run / "trace.jsonl")[0]
    return {s.name: s for s in monitor_statuses(found.plan.config, found.steps, trace, found.metrics)}


def warn(run: Path, **row: Any) -> None:
    with (run / "trace.jsonl").open("a") as file:
        file.write(json.dumps({"step": 2, "stage": "monitor", "event": "warning", "stops": False, **row}) + "\n")


def with_monitors(run: Path, monitors: list[dict[str, Any]]) -> None:
    plan = json.loads((run / "plan.json").read_text())
    plan["config"]["monitors"] = monitors
    (run / "plan.json").write_text(json.dumps(plan))


def test_green_where_a_monitor_looked_and_was_silent_grey_where_none_did(copy: Path) -> None:
    found = statuses(copy)
    assert (found["kl_spike"].colour, found["kl_spike"].reason) == ("green", "no warning in 2 steps")
    assert (found["format_drift"].colour, "reports no reward/part/format" in found["format_drift"].reason) == (
        "grey",
        True,
    )
    assert "divergence" not in found
    assert (found["hacking"].colour, found["hacking"].reason[:11]) == ("grey", "not watched")
    with_monitors(copy, [{"name": "health", "kl_spike": None}])
    assert "switched off" in statuses(copy)["kl_spike"].reason


def test_a_run_without_monitors_says_once_how_to_have_them(copy: Path) -> None:
    with_monitors(copy, [])
    assert [(status.name, status.colour) for status in statuses(copy).values()] == [
        ("health", "grey"),
        ("hacking", "grey"),
    ]
    page = page_of(copy)
    assert "No monitor watched this run." in page
    assert "<code>--set 'monitors=[health,hacking]'</code> to <code>rlhf train</code>" in page
    assert '<span class="signal grey">' not in page
    with_monitors(copy, [{"name": "kl_spike"}])
    found = statuses(copy)
    assert list(found) == ["kl_spike", "health", "hacking"]
    assert found["health"].title == "other signs of bad health"
    assert "No monitor watched this run." not in page_of(copy)


def test_amber_for_a_warning_and_red_for_what_ended_the_run(copy: Path) -> None:
    warn(copy, monitor="health", text="kl_spike: kl is 6.03\nentropy_collapse: entropy is 0.001")
    warn(copy, monitor="health", text="length_runaway: 9000 tokens", stops=True)
    found = statuses(copy)
    assert {name: found[name].colour for name in ("kl_spike", "entropy_collapse", "length_runaway", "identical")} == {
        "kl_spike": "amber",
        "entropy_collapse": "amber",
        "length_runaway": "red",
        "identical": "green",
    }
    assert found["kl_spike"].reason == "step 2: kl_spike: kl is 6.03"
    page = page_of(copy)
    assert '<span class="signal amber">amber</span>' in page
    assert "step 2: length_runaway: 9000 tokens (this ended the run)" in page


def test_hacking_is_red_at_a_hard_stop_and_other_monitors_have_a_light(copy: Path) -> None:
    with_monitors(copy, [{"name": "hacking", "dominance": None}, {"name": "mine"}])
    with (copy / "metrics.jsonl").open("a") as file:
        for step in range(3, 12):
            level = 2.0 if step == 11 else 0.0
            file.write(json.dumps({"step": step, "hacking/level": level, "hacking/second": 0.1}) + "\n")
    assert statuses(copy)["divergence"].colour == "green"
    warn(copy, monitor="hacking", text="hacking HARD_STOP: divergence: the second reward falls. Likely cause: x")
    warn(copy, monitor="mine", text="too hot")
    found = statuses(copy)
    assert [found[name].colour for name in ("divergence", "length", "dominance", "mine")] == [
        "red",
        "green",
        "grey",
        "amber",
    ]
    assert found["mine"].reason == "step 2: too hot"


def test_settings_at_which_monitors_speak_are_lines_in_their_charts(copy: Path) -> None:
    divergence = {"fall": 0.25, "hard_fall": 0.5, "rise": 0.5}
    with_monitors(copy, [{"name": "hacking", "divergence": divergence, "classic": {"kl": 0.15}}, {"name": "health"}])
    found = thresholds(open_run(str(copy)).plan.config)
    assert found["hacking/second_loss"] == [0.25, 0.5]
    assert "hacking/reward_kl" not in found, "the preset sequential does not read it"
    with_monitors(copy, [{"name": "kl_spike", "limit": 0.5}])
    page = read_page([open_run(str(copy))], 10)
    charts = {chart.metric: chart for _, of_group in draw(page.runs) for chart in of_group}
    assert charts["kl"].item["limits"] == [0.5]
    assert charts["kl"].summary.endswith("a monitor speaks at 0.5")
    assert charts["reward/mean"].item["limits"] == []
