"""Metrics of a run: written to ``metrics.jsonl``, sent to trackers, shown to monitors and hooks."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from functools import partial

from rlhf_core.plugins import hooks as hk
from rlhf_core.plugins.protocols import Monitor, Tracker
from rlhf_core.runs.component_set import ComponentSet
from rlhf_core.runs.run_dir import RunDir
from rlhf_core.runs.work import Progress
from rlhf_core.types.errors import StopRun

log = logging.getLogger("rlhf")


class MetricLogger:
    """Only the rank that writes appends to files and shows progress; trackers, monitors and hooks see every rank's.

    Args:
        run_dir: the run's folder.
        hooks: listeners.
        components: names trackers and monitors in messages.
        counts: warnings of monitors are counted here.
        writes: whether this rank writes.
    """

    def __init__(
        self, run_dir: RunDir, hooks: hk.HookBus, components: ComponentSet, counts: Counter[str], *, writes: bool
    ) -> None:
        self.dir, self.hooks, self.components, self.counts, self.writes = run_dir, hooks, components, counts, writes
        self.trackers: list[Tracker] = []
        self.monitors: list[Monitor] = []
        self.total_steps: int | None = None
        """Steps that the trainer expects to make, once it knows."""
        self.progress: Progress = lambda step, total, metrics: None

    def log_step(self, step: int, metrics: Mapping[str, float], seconds: Mapping[str, float]) -> None:
        """Write one step's metrics, then call trackers, hooks and monitors. Times are kept apart."""
        if self.writes:
            self.dir.append("metrics", {"step": step, **metrics, "time": dict(seconds)})
        self._track(step, {**metrics, **{f"time/{k}": v for k, v in seconds.items()}})
        if self.writes:
            self.progress(step, self.total_steps, {**metrics, **seconds})
        event = hk.StepEnd(step, dict(metrics))
        self.hooks.fire("rlhf_step_end", event)
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
            self.dir.append("trace", {"step": step, "stage": "monitor", **row})

    def log_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a held-out evaluation."""
        self.log_more(step, metrics)
        self.hooks.fire("rlhf_eval_end", hk.EvalEnd(step, dict(metrics)))

    def log_more(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write what a monitor measures besides a step's metrics: a row of its own; no hook is called."""
        if self.writes:
            self.dir.append("metrics", {"step": step, **metrics})
        self._track(step, metrics)

    def _track(self, step: int, metrics: Mapping[str, float]) -> None:
        for tracker in self.trackers:
            entry = self.components.of(tracker)
            record = partial(tracker.log, step, dict(metrics))
            self.hooks.call(f"log() of {entry.label}", f"{entry.key}:log", record)
