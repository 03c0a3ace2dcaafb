"""The status of each signal that a monitor watches: green, amber, red; grey where it is not watched."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_core.runs import StoredRun
from rlhf_plugin_report.words import known

Row = Mapping[str, Any]
READINGS = 8
"""With fewer readings its signals say nothing."""


@dataclass(frozen=True)
class MonitorStatus:
    panel: str
    """``Health``, ``Reward hacking`` or ``Other monitors``."""
    name: str
    title: str
    colour: str
    """``green``, ``amber``, ``red`` or ``grey``."""
    reason: str


def monitor_statuses(run: StoredRun, trace: Sequence[Row], metrics: Sequence[Row]) -> list[MonitorStatus]:
    configured = {
        str(c["name"]).rpartition("/")[2]: c for c in run.plan.config.get("monitors") or () if isinstance(c, Mapping)
    }
    warned = [row for row in trace if row.get("event") == "warning" and "text" in row]
    reported = {key for row in metrics for key in row}
    return [
        *_health(configured, warned, reported, run),
        *_hacking(configured, warned, metrics, run),
        *_others(configured, warned, run),
    ]


def not_watched(monitor: str) -> str:
    return f"not watched; watch the next run with --set 'monitors=[{monitor}]'"


def _health(
    configured: Mapping[str, Any], warned: Sequence[Row], reported: set[str], run: StoredRun
) -> Iterator[MonitorStatus]:
    health = configured.get("health")
    watched = {name: of for name, of in known()["health"].items() if health is not None or name in configured}
    for name, (title, *needs) in watched.items():
        monitor = configured.get(name)
        switched_off = monitor is None and health is not None and health.get(name, {}) is None
        lines = _lines(warned, ("health", name), rf"^{name}: ")
        if switched_off:
            colour, reason = "grey", f"switched off in this run's monitor 'health' ({name}: null)"
        elif not reported & set(needs):
            colour, reason = "grey", f"this run reports no {' or '.join(needs)}"
        else:
            colour, reason = _said(lines, run)
        yield MonitorStatus("Health", name, title, colour, reason)
    if health is None:
        title = "other signs of bad health" if watched else "signs of bad health"
        yield MonitorStatus("Health", "health", title, "grey", not_watched("health"))


def _hacking(
    configured: Mapping[str, Any], warned: Sequence[Row], metrics: Sequence[Row], run: StoredRun
) -> Iterator[MonitorStatus]:
    config = configured.get("hacking")
    if config is None:
        yield MonitorStatus("Reward hacking", "hacking", "signs of reward hacking", "grey", not_watched("hacking"))
        return
    read = {key for row in metrics for key in row if key.startswith("hacking/")}
    readings = sum("hacking/level" in row for row in metrics)
    hard = any(row.get("hacking/level") == 2 for row in metrics)
    for name, title in known()["hacking"].items():
        if config.get(name, {}) is None:
            colour, reason = "grey", f"switched off in this run's monitor 'hacking' ({name}: null)"
        elif not read:
            colour, reason = "grey", "the monitor has read nothing yet"
        else:
            colour, reason = _said(_lines(warned, ("hacking",), rf"\b{name}: "), run)
            if colour == "amber" and hard:
                colour = "red"
            if colour == "green" and name == "divergence" and "hacking/second" not in read:
                colour, reason = "grey", "no second reward to compare with (divergence.second), and no evaluation yet"
            elif colour == "green" and readings < READINGS:
                colour, reason = "grey", f"{readings} readings, and it says nothing before {READINGS}"
        yield MonitorStatus("Reward hacking", name, title, colour, reason)


def _others(configured: Mapping[str, Any], warned: Sequence[Row], run: StoredRun) -> Iterator[MonitorStatus]:
    for name in configured.keys() - {"health", "hacking", *known()["health"]}:
        lines = _lines(warned, (name,), "")
        yield MonitorStatus("Other monitors", name, f"monitor '{name}'", *_said(lines, run))


def _lines(warned: Sequence[Row], monitors: Sequence[str], pattern: str) -> list[tuple[int, str, bool]]:
    return [
        (int(row.get("step", 0)), line, bool(row.get("stops")))
        for row in warned
        if str(row.get("monitor", "")).partition("#")[0].rpartition("/")[2] in monitors
        for line in str(row["text"]).splitlines()
        if re.search(pattern, line)
    ]


def _said(lines: Sequence[tuple[int, str, bool]], run: StoredRun) -> tuple[str, str]:
    if not lines:
        steps = run.steps
        return ("green", f"no warning in {steps} step{'s' * (steps != 1)}") if steps else ("grey", "no step yet")
    stopped = next((line for line in lines if line[2]), None)
    step, text, _ = stopped or lines[-1]
    times = f"; {len(lines)} warnings" if len(lines) > 1 else ""
    return ("red" if stopped else "amber"), f"step {step}: {text}{' (this ended the run)' * bool(stopped)}{times}"
