"""What all monitors here share: memory, patience, and repeating the same warning only now and then."""

from __future__ import annotations

import math
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rlhf_core.config import BuildContext
from rlhf_core.hooks import StopRun

if TYPE_CHECKING:
    from rlhf_plugin_health.config import WatchConfig


Metrics = Mapping[str, float]
WARNINGS: Mapping[str, Mapping[str, Any]] = tomllib.loads(Path(__file__).with_name("warnings.toml").read_text())
C = TypeVar("C", bound="WatchConfig")


class Watch(ABC, Generic[C]):
    """One thing that can go wrong. A subclass implements :meth:`look`."""

    def __init__(self, config: C, ctx: BuildContext) -> None:
        self.config = config
        self.patience, self.repeat_every, self.stop = config.patience, config.repeat_every, config.stop
        self.name, self.run = config.name, ctx.config
        self.memory: dict[str, list[float]] = {}
        """Recent values by metric, oldest first."""
        self.streak = 0
        """Alarming steps in a row."""
        self.last_warned = -math.inf
        """Step of the last warning."""

    @abstractmethod
    def look(self, step: int, metrics: Metrics) -> str | None:
        """What is wrong with this step, None if nothing is."""

    def observe(self, step: int, metrics: Metrics) -> str | None:
        """Warn after ``patience`` alarming steps in a row, and again every ``repeat_every`` steps while it lasts."""
        problem = self.look(step, metrics)
        self.streak = self.streak + 1 if problem else 0
        if not problem or self.streak < self.patience:
            return None
        if self.stop:
            raise StopRun(f"{self.name}: {problem}")
        if step - self.last_warned < self.repeat_every:
            return None
        self.last_warned = step
        return f"{self.name}: {problem}"

    def recent(self, metric: str, value: float, window: int) -> list[float]:
        """The last ``window`` values *before* this one, which is remembered too if it is finite."""
        before = self.memory.setdefault(metric, [])
        now = list(before)
        if math.isfinite(value):
            self.memory[metric] = [*before, value][-window:]
        return now

    def start(self, metric: str, value: float, steps: int) -> float | None:
        """Median of the first ``steps`` values of a metric; None until they are in."""
        key = f"start {metric}"
        first = self.memory.setdefault(key, [])
        if len(first) < steps:
            if math.isfinite(value):
                first.append(value)
            return None
        return median(first)

    def message(self, name: str, left_out: Sequence[str] = (), **figures: Any) -> str:
        """A warning of ``warnings.toml``, without changes of the settings ``left_out``."""
        row = WARNINGS[name]
        changes = [(path, value, "".join(remark)) for path, value, *remark in row["changes"] if path not in left_out]
        advice = ", ".join(self.change(path, value) + remark for path, value, remark in changes)
        return f"{row['problem'].format(**figures)}. Likely cause: {row['cause']}. Change: {advice}"

    def change(self, path: str, value: Any) -> str:
        """What to type, and what it is now. Example: ``--set trainer.kl.coefficient=0.01 (now 0.0)``"""
        now: Any = self.run
        for part in path.split("."):
            now = getattr(now, part, None)
        return f"--set {path}={value}" + ("" if now is None else f" (now {now})")

    def state_dict(self) -> dict[str, Any]:
        last_warned = self.last_warned if math.isfinite(self.last_warned) else None
        return {"memory": {k: list(v) for k, v in self.memory.items()}, "streak": self.streak, "said": last_warned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.memory = {k: [float(x) for x in v] for k, v in state["memory"].items()}
        self.streak = int(state["streak"])
        self.last_warned = -math.inf if state["said"] is None else float(state["said"])


def number(metrics: Metrics, name: str) -> float | None:
    value = metrics.get(name)
    return None if value is None or math.isnan(value) else float(value)


class Health:
    """Several watches under one name."""

    def __init__(self, watches: list[Watch[Any]]) -> None:
        self.watches = {w.name: w for w in watches}

    def observe(self, step: int, metrics: Metrics) -> str | None:
        warnings: list[str] = []
        stop = False
        for watch in self.watches.values():
            try:
                warnings.append(watch.observe(step, metrics) or "")
            except StopRun as reason:
                warnings.append(reason.reason)
                stop = True
        text = "\n".join(s for s in warnings if s)
        if stop:
            raise StopRun(text)
        return text or None

    def state_dict(self) -> dict[str, Any]:
        return {name: watch.state_dict() for name, watch in self.watches.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, watch in self.watches.items():
            watch.load_state_dict(state[name])
