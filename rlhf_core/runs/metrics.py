"""Metrics of a run: logged to ``metrics.jsonl``, trackers, monitors and hooks; and statistics of plain numbers."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from rlhf_core.plugins import hooks as hk
from rlhf_core.plugins.protocols import Monitor, Tracker
from rlhf_core.runs.component_set import ComponentSet
from rlhf_core.runs.run_dir import RunDir
from rlhf_core.runs.work import Progress
from rlhf_core.types.errors import StopRun


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; 0.0 of nothing."""
    return float(sum(values) / len(values)) if values else 0.0


def compared_steps(steps: int) -> int:
    """How many steps at each end of a run are compared: five, and fewer where the two ends would share one."""
    return max(1, min(5, steps // 2))


def first_and_last(rows: Sequence[Mapping[str, Any]], key: str, name: str) -> dict[str, float | None]:
    """``NAME_first`` and ``NAME_last``: means over the steps at both ends; None if no row has the key."""
    values = [float(r[key]) for r in rows if r.get(key) is not None]
    count = compared_steps(len(values))
    ends = (mean(values[:count]), mean(values[-count:])) if values else (None, None)
    return {f"{name}_first": ends[0], f"{name}_last": ends[1]}


def wilson(share: float, count: float, z: float = 1.959964) -> tuple[float, float]:
    r"""Score interval of a share: the :math:`p` with :math:`|\hat p - p| \le z \sqrt{p (1 - p) / n}`.

    Sensible also where nothing or everything is right, and for few cases (Wilson 1927, J. Am. Stat. Assoc. 22, 209).

    Args:
        share: in [0, 1]; halves, as of ties, are allowed.
        count: of independent cases; an effective number need not be whole.
        z: quantile of the normal distribution; 95 % by default.

    Returns:
        Both ends, in [0, 1]; NaN of no cases.

    Example:
        >>> [round(bound, 3) for bound in wilson(0.5, 100)]
        [0.404, 0.596]
        >>> [round(bound, 3) for bound in wilson(0.0, 20)]
        [0.0, 0.161]
    """
    if count == 0:
        return math.nan, math.nan
    square = z * z / count
    centre = (share + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt((share * (1 - share) + square / 4) / count)
    return 0.0 if share == 0 else max(0.0, centre - half), 1.0 if share == 1 else min(1.0, centre + half)


class WinRate(NamedTuple):
    """Share of wins with ties as half, and its 95 % interval."""

    rate: float
    low: float
    high: float
    n: int


def win_rate(after: Sequence[float], before: Sequence[float], tolerance: float = 1e-9) -> WinRate:
    """How often ``after`` beats ``before`` prompt by prompt (Wilson score interval, 95 %).

    Raises:
        ValueError: lengths differ or are 0.
    """
    if len(after) != len(before) or not after:
        raise ValueError(f"win_rate needs two equally long, non-empty lists, got {len(after)} and {len(before)}")
    points = sum(1.0 if a > b + tolerance else 0.5 if abs(a - b) <= tolerance else 0.0 for a, b in zip(after, before))
    n, rate = len(after), points / len(after)
    return WinRate(rate, *wilson(rate, n), n)


log = logging.getLogger("rlhf")


class MetricLogger:
    """Only the rank that writes appends to files and shows progress; trackers, monitors and hooks see every rank's."""

    def __init__(
        self, run_dir: RunDir, hooks: hk.HookBus, components: ComponentSet, counts: Counter[str], *, writes: bool
    ) -> None:
        self.dir, self.hooks, self.components, self.counts, self.writes = run_dir, hooks, components, counts, writes
        self.trackers: list[Tracker] = []
        self.monitors: list[Monitor] = []
        self.total_steps: int | None = None
        self.progress: Progress = lambda step, total, metrics: None

    def log_step(self, step: int, metrics: Mapping[str, float], seconds: Mapping[str, float]) -> None:
        """Write one step's metrics, then call trackers, hooks and monitors. Times are kept apart."""
        if self.writes:
            self.dir.streams["metrics"].append({"step": step, **metrics, "time": dict(seconds)})
        self._track(step, {**metrics, **{f"time/{k}": v for k, v in seconds.items()}})
        if self.writes:
            self.progress(step, self.total_steps, {**metrics, **seconds})
        self.hooks.fire("rlhf_step_end", hk.StepMetrics(step, dict(metrics)))
        for monitor in self.monitors:
            self._observe(monitor, step, dict(metrics))

    def _observe(self, monitor: Monitor, step: int, metrics: Mapping[str, float]) -> None:
        entry = self.components.of(monitor)

        def observe() -> str | None:
            try:
                answer: object = monitor.observe(step, metrics)
            except StopRun as stop:
                self._trace_warning(step, entry.key, stop.reason, stops=True)
                raise
            if answer is None or isinstance(answer, str):
                return answer
            raise TypeError(f"it returned {answer!r:.80}, expected None or a warning")

        warning = self.hooks.call(f"observe() of {entry.label}", f"{entry.key}:observe", observe)
        if warning:
            self.counts["monitor_warnings"] += 1
            log.warning("step %d: %s", step, warning)
            self._trace_warning(step, entry.key, warning, stops=False)

    def _trace_warning(self, step: int, monitor: str, text: str, *, stops: bool) -> None:
        """Keep what a monitor said, for whoever looks at the run later."""
        if self.writes:
            row = {"event": "warning", "monitor": monitor.removeprefix("monitor/"), "text": str(text), "stops": stops}
            self.dir.streams["trace"].append({"step": step, "stage": "monitor", **row})

    def log_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a held-out evaluation."""
        self.log_more(step, metrics)
        self.hooks.fire("rlhf_eval_end", hk.StepMetrics(step, dict(metrics)))

    def log_more(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write what a monitor measures besides a step's metrics: a row of its own; no hook is called."""
        if self.writes:
            self.dir.streams["metrics"].append({"step": step, **metrics})
        self._track(step, metrics)

    def _track(self, step: int, metrics: Mapping[str, float]) -> None:
        for tracker in self.trackers:
            entry = self.components.of(tracker)
            record = partial(tracker.log, step, dict(metrics))
            self.hooks.call(f"log() of {entry.label}", f"{entry.key}:log", record)
