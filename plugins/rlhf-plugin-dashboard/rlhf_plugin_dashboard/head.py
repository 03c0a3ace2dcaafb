"""A run in one line of the list: what it is, how it stands, how far it came. Only ends of files are read."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlhf_core.runs import StoredRun
from rlhf_plugin_dashboard.follow import Follower

DEPTH = 3
"""Folders below the one asked for in which runs are looked for: those of recipes and studies lie deeper."""
STREAMS = ("metrics.jsonl", "trace.jsonl", "samples.jsonl", "log.txt", "plan.json")
MAIN = ("reward/mean", "accuracy", "loss")
"""Metrics that stand for a run in the list; the first that it has."""
TAIL = 1 << 16
KILLED = {"interrupted": "it was killed: no process works on it"}
QUIET_S = 120.0
"""A run without an end that wrote nothing for so long, and for five of its steps, is called silent."""


@dataclass(frozen=True)
class Head:
    name: str
    """Folder, relative to the one asked for."""
    status: str
    """``running``, ``silent`` (in a long step, or hanging), ``damaged``, or as in ``rlhf runs list``."""
    problem: str = ""
    algorithm: str = ""
    reward: str = ""
    model: str = ""
    step: int | None = None
    steps: int | None = None
    metric: str = ""
    value: float | None = None
    written: float | None = None
    """When it last wrote something, in seconds since 1970."""

    def to_json(self, now: float) -> dict[str, Any]:
        row = asdict(self)
        written = row.pop("written")
        return {**row, "age": None if written is None else max(0.0, now - written)}


def run_folders(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        deep = len(Path(folder).relative_to(root).parts)
        if "plan.json" in files:
            yield Path(folder)
        if "plan.json" in files or deep >= DEPTH:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))


@dataclass
class HeadReader:
    """Reads the head of one run, again and again: a file that did not change is not read again."""

    path: Path
    name: str
    _seen: dict[str, tuple[tuple[int, int], Mapping[str, Any] | str]] = field(default_factory=dict)
    _metrics: Follower = field(init=False)
    _last: dict[str, float] = field(default_factory=dict)
    _damaged: int = 0

    def __post_init__(self) -> None:
        self._metrics = Follower(self.path / "metrics.jsonl", newest=TAIL)

    def read(self) -> Head:
        times = [stamp[1] / 1e9 for name in STREAMS if (stamp := _stamp(self.path / name))]
        written = max(times, default=None)
        plan = self._json("plan.json")
        if plan == "" and written and time.time() - written < 10:
            return Head(self.name, "running", written=written)  # made a moment ago
        config = plan.get("config") if isinstance(plan, Mapping) else None
        if not isinstance(config, Mapping):
            why = plan if isinstance(plan, str) and plan else "it holds no configuration"
            return Head(self.name, "damaged", f"plan.json cannot be read: {why}", written=written)
        ends = {name: self._json(f"{name}.json") for name in ("summary", "failure")}
        broken = [f"{name}.json cannot be read: {end}" for name, end in ends.items() if isinstance(end, str)]
        broken += self._follow()
        ended = next((end for end in ends.values() if isinstance(end, Mapping)), None)
        status = str(ended.get("status", "completed")) if ended else self._unfinished(written)
        why_ended = str(ended.get("error") or ended.get("stop_reason") or "") if ended else KILLED.get(status, "")
        metric = next((name for name in MAIN if name in self._last), "")
        trainer = config.get("trainer")
        lengths = [trainer.get(key) for key in ("steps", "max_steps")] if isinstance(trainer, Mapping) else []
        steps = next((n for n in lengths if isinstance(n, int)), None)
        return Head(
            self.name,
            "damaged" if broken else status,
            "; ".join(broken) or why_ended,
            _name(config.get("trainer")),
            _name(config.get("reward")),
            str((config.get("model") or {}).get("path", "")) if isinstance(config.get("model"), Mapping) else "",
            int(self._last["step"]) if "step" in self._last else None,
            steps,
            metric,
            self._last.get(metric),
            written,
        )

    def _follow(self) -> list[str]:
        try:
            new = self._metrics.read()
        except OSError as error:
            return [f"metrics.jsonl cannot be read: {error.strerror}"]
        if new.restarted:
            self._last, self._damaged = {}, 0
        self._damaged += new.damaged
        for row in new.rows:
            numbers = {k: v for k, v in row.items() if isinstance(v, int | float) and not isinstance(v, bool)}
            self._last |= {k: v for k, v in numbers.items() if k in (*MAIN, "step")}
        return [f"metrics.jsonl: {self._damaged} lines hold no JSON object"] if self._damaged else []

    def _unfinished(self, written: float | None) -> str:
        if StoredRun.is_live(self.path) is False:
            return "interrupted"
        began = _stamp(self.path / "plan.json")
        per_step = (
            (written - began[1] / 1e9) / self._last["step"] if written and began and self._last.get("step") else 0
        )
        quiet = max(QUIET_S, 5 * per_step)
        return "running" if written and time.time() - written < quiet else "silent"

    def _json(self, name: str) -> Mapping[str, Any] | str | None:
        """What the file holds; why it cannot be read; "" if it is empty, None if there is none."""
        stamp = _stamp(self.path / name)
        if stamp is None:
            return None
        if name not in self._seen or self._seen[name][0] != stamp:
            self._seen[name] = (stamp, _load(self.path / name))
        return self._seen[name][1]


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _load(path: Path) -> Mapping[str, Any] | str:
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text) if text.strip() else ""
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return value if isinstance(value, Mapping) or value == "" else "it is not a JSON object"


def _name(component: Any) -> str:
    return str(component.get("name", "")) if isinstance(component, Mapping) else ""
