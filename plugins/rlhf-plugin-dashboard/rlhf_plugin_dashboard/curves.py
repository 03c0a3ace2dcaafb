"""Curves and newest rollouts of one run, for several readers at once who each know a part already."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from rlhf_plugin_dashboard.follow import Follower
from rlhf_plugin_report.monitor_status import monitor_statuses, thresholds
from rlhf_plugin_report.rows import is_count
from rlhf_plugin_report.turns import is_turn, turns_of

POINTS = 1000
"""Most points of a curve that are sent at once; a longer stretch is thinned evenly."""
NEWEST = 200
"""Newest completions that are held."""
WARNINGS = 20
"""Newest warnings of monitors that are sent."""
TRACE_WINDOW = 4 << 20
TEXT = 4000
"""Characters of a prompt or completion that are sent."""
TURN = 1000
"""The same of one turn of an episode."""


@dataclass
class RunData:
    """One run's files, followed. A cursor ``epoch.count`` gets what came since; an earlier epoch's (the run was resumed
    from an earlier step), or none, gets everything."""

    path: Path
    _rows: list[dict[str, float]] = field(default_factory=list)
    _rollouts: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=NEWEST))
    _warnings: list[dict[str, Any]] = field(default_factory=list)
    _count: int = 0
    """Completions so far; the newest has this number."""
    _epochs: dict[str, int] = field(default_factory=lambda: {"metrics": 0, "rollouts": 0})
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self._metrics = Follower(self.path / "metrics.jsonl")
        self._trace = Follower(self.path / "trace.jsonl", newest=TRACE_WINDOW)

    def since(self, metrics: str, rollouts: str) -> dict[str, Any]:
        """What a reader with these cursors does not have yet."""
        with self._lock:
            self._follow()
            first = self._position("metrics", metrics, len(self._rows))
            seen = self._position("rollouts", rollouts, self._count)
            new = [row for row in self._rollouts if row["number"] > (seen or 0)]
            return {
                "metrics": {
                    "cursor": f"{self._epochs['metrics']}.{len(self._rows)}",
                    "restarted": first is None,
                    "curves": _curves(self._rows[first or 0 :]),
                },
                "rollouts": {
                    "cursor": f"{self._epochs['rollouts']}.{self._count}",
                    "restarted": seen is None,
                    "rows": new,
                },
                "warnings": list(self._warnings)[-WARNINGS:],
                **self._monitors(),
            }

    def _monitors(self) -> dict[str, Any]:
        """The status of what monitors watch, and where they speak."""
        plan = self._plan()
        steps = int(self._rows[-1]["step"]) if self._rows else 0
        rows = [asdict(status) for status in monitor_statuses(plan, steps, self._warnings, self._rows)]
        if self._trace.skipped:
            unseen = " in the newest part of its trace"
            rows = [{**row, "reason": row["reason"] + unseen * (row["colour"] == "green")} for row in rows]
        return {"statuses": rows, "thresholds": thresholds(plan)}

    def _plan(self) -> Mapping[str, Any]:
        try:
            config = json.loads((self.path / "plan.json").read_text(encoding="utf-8")).get("config")
        except (OSError, ValueError, AttributeError):
            return {}  # the list of runs says what is wrong with it
        return config if isinstance(config, Mapping) else {}

    def _follow(self) -> None:
        new = self._metrics.read()
        if new.restarted:
            self._rows.clear()
            self._epochs["metrics"] += 1
        self._rows += [dict(_numbers(row)) for row in new.rows if is_count(row.get("step"))]
        new = self._trace.read()
        if new.restarted:
            self._rollouts.clear()
            self._warnings.clear()
            self._count = 0
            self._epochs["rollouts"] += 1
        warnings = [row for row in new.rows if row.get("event") == "warning"]
        self._warnings += [
            {**{k: row.get(k) for k in ("step", "monitor", "event", "stops")}, "text": _cut(row.get("text"))}
            for row in warnings
        ]
        for row in _completions(new.rows):
            self._count += 1
            self._rollouts.append({"number": self._count, **row})

    def _position(self, stream: str, cursor: str, most: int) -> int | None:
        """How much a reader has; None for all anew."""
        epoch, _, count = cursor.partition(".")
        is_current = epoch == str(self._epochs[stream]) and count.isascii() and count.isdigit() and len(count) < 16
        return int(count) if is_current and int(count) <= most else None


def _numbers(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Names and finite numbers of a row; those of a nested mapping as ``time/step``."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300:
            yield f"{prefix}{key}", value


def _curves(rows: Iterable[Mapping[str, float]]) -> dict[str, tuple[list[float], list[float]]]:
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for row in rows:
        for key, value in row.items():
            if key != "step":
                steps, values = curves.setdefault(key, ([], []))
                steps.append(row["step"])
                values.append(float(f"{value:.6g}"))
    return {key: (_thin(steps), _thin(values)) for key, (steps, values) in curves.items()}


def _thin(values: list[float]) -> list[float]:
    n = len(values)
    return values if n <= POINTS else [values[(i + 1) * n // POINTS - 1] for i in range(POINTS)]


def _completions(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        completions = row.get("completions")
        if row.get("event") != "prompt" or not isinstance(completions, list):
            continue
        for completion in completions:
            if isinstance(completion, Mapping):
                yield {
                    "step": row.get("step"),
                    "id": row.get("prompt_id"),
                    "prompt": _cut(row.get("prompt")),
                    "text": _cut(completion.get("text")),
                    **{k: completion.get(k) for k in ("score", "status", "advantage", "tokens", "finish_reason")},
                    "parts": completion.get("parts") or {},
                    **_turns(completion.get("turns")),
                    "detail": _cut(completion["detail"]) if completion.get("detail") else "",
                }


def _turns(value: Any) -> dict[str, Any]:
    """Turns of an episode, small: a page of the dashboard shows many completions."""
    if not isinstance(value, list) or not value or not all(map(is_turn, value)):
        return {}
    return {"turns": [{**turn, "text": turn["text"][:TURN]} for turn in turns_of(value)]}


def _cut(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else str(value)
    return text if len(text) <= TEXT else f"{text[:TEXT]} … ({len(text) - TEXT} more characters)"
