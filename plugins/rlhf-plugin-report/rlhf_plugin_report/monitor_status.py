"""The status of each signal that a monitor watches: green, amber, red; grey where it is not watched."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_plugin_report.rows import is_number
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


def monitor_statuses(config: Row, steps: int, trace: Sequence[Row], metrics: Sequence[Row]) -> list[MonitorStatus]:
    """By the run's ``config``, the ``steps`` done, and its rows of ``trace.jsonl`` and ``metrics.jsonl``."""
    configured = configured_monitors(config)
    warned = [row for row in trace if row.get("event") == "warning" and "text" in row]
    reported = {key for row in metrics for key in row}
    return [
        *_health(configured, warned, reported, steps),
        *_hacking(configured, warned, metrics, steps),
        *_others(configured, warned, steps),
    ]


def configured_monitors(config: Row) -> dict[str, Row]:
    """Settings of a run's monitors, by name."""
    rows = config.get("monitors")
    return {
        str(c.get("name")).rpartition("/")[2]: c
        for c in (rows if isinstance(rows, list | tuple) else ())
        if isinstance(c, Mapping)
    }


def thresholds(config: Row) -> dict[str, list[float]]:
    """Values of a metric at which a monitor of this run speaks, where they are settings; see ``metrics.toml``."""
    monitors, lines = configured_monitors(config), dict[str, list[float]]()
    for metric, rows in known()["thresholds"].items():
        for monitor, *path in (row.split(".") for row in rows):
            value: Any = monitors.get(monitor)
            for part in path:
                value = value.get(part.lstrip("-")) if isinstance(value, Mapping) else None
            is_classic = monitors.get(monitor, {}).get("preset") == "classic"
            if is_number(value) and is_classic == (path[0] == "classic"):
                lines.setdefault(metric, []).append(-value if path[-1].startswith("-") else value)
    return lines


def not_watched(monitor: str) -> str:
    return f"not watched; watch the next run with --set 'monitors=[{monitor}]'"


def _health(
    configured: Mapping[str, Any], warned: Sequence[Row], reported: set[str], steps: int
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
            colour, reason = _said(lines, steps)
        yield MonitorStatus("Health", name, title, colour, reason)
    if health is None:
        title = "other signs of bad health" if watched else "signs of bad health"
        yield MonitorStatus("Health", "health", title, "grey", not_watched("health"))


def _hacking(
    configured: Mapping[str, Any], warned: Sequence[Row], metrics: Sequence[Row], steps: int
) -> Iterator[MonitorStatus]:
    config = configured.get("hacking")
    if config is None:
        yield MonitorStatus("Reward hacking", "hacking", "signs of reward hacking", "grey", not_watched("hacking"))
        return
    read = {key for row in metrics for key in row if key.startswith("hacking/")}
    readings = sum("hacking/level" in row for row in metrics)
    hard = any(row.get("hacking/level") == 2 for row in metrics)
    classic = config.get("preset") == "classic"
    for name, title in known()["classic" if classic else "hacking"].items():
        if config.get(name, {}) is None and not classic:
            colour, reason = "grey", f"switched off in this run's monitor 'hacking' ({name}: null)"
        elif not read:
            colour, reason = "grey", "the monitor has read nothing yet"
        else:
            colour, reason = _said(_lines(warned, ("hacking",), rf"\b{name}: "), steps)
            if colour == "amber" and hard:
                colour = "red"
            if colour == "green" and name == "divergence" and "hacking/second" not in read:
                colour, reason = "grey", "no second reward to compare with (divergence.second), and no evaluation yet"
            elif colour == "green" and readings < READINGS:
                colour, reason = "grey", f"{readings} readings, and it says nothing before {READINGS}"
        yield MonitorStatus("Reward hacking", name, title, colour, reason)


def _others(configured: Mapping[str, Any], warned: Sequence[Row], steps: int) -> Iterator[MonitorStatus]:
    for name in configured.keys() - {"health", "hacking", *known()["health"]}:
        lines = _lines(warned, (name,), "")
        yield MonitorStatus("Other monitors", name, f"monitor '{name}'", *_said(lines, steps))


def _lines(warned: Sequence[Row], monitors: Sequence[str], pattern: str) -> list[tuple[int, str, bool]]:
    return [
        (int(row.get("step", 0)), line, bool(row.get("stops")))
        for row in warned
        if str(row.get("monitor", "")).partition("#")[0].rpartition("/")[2] in monitors
        for line in str(row["text"]).splitlines()
        if re.search(pattern, line)
    ]


def _said(lines: Sequence[tuple[int, str, bool]], steps: int) -> tuple[str, str]:
    if not lines:
        return ("green", f"no warning in {steps} step{'s' * (steps != 1)}") if steps else ("grey", "no step yet")
    stopped = next((line for line in lines if line[2]), None)
    step, text, _ = stopped or lines[-1]
    times = f"; {len(lines)} warnings" if len(lines) > 1 else ""
    return ("red" if stopped else "amber"), f"step {step}: {text}{' (this ended the run)' * bool(stopped)}{times}"
