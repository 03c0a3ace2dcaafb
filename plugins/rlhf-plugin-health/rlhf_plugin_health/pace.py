"""Steps that become slow, and scoring that times out more and more."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from rlhf_core.config import BuildContext
from rlhf_plugin_health.config import SlowStepConfig, TimeoutsConfig
from rlhf_plugin_health.watch import Metrics, Watch

TAIL = 1 << 16
"""Bytes at the end of a file that hold its last row."""


class Timeouts(Watch[TimeoutsConfig]):
    """More and more completions get no score in time."""

    def look(self, step: int, metrics: Metrics) -> str | None:
        config, trainer = self.config, getattr(self.run, "trainer", None)
        share = metrics.get("reward/timeout", 0.0) / float(getattr(trainer, "rollout_batch_size", 1))
        before = self.recent("reward/timeout", share, config.window)
        usual = median(before) if len(before) >= config.settle else None
        if usual is None or share <= max(config.floor, config.factor * usual):
            return None
        return self.message("timeouts", share=share, usual=usual, count=len(before))


class SlowStep(Watch[SlowStepConfig]):
    """A step takes much longer than the last ones; times are no metrics, so they are read from the run's own file."""

    def __init__(self, config: SlowStepConfig, ctx: BuildContext) -> None:
        super().__init__(config, ctx)
        self.file = Path(ctx.session.dir.path) / "metrics.jsonl" if ctx.session is not None else None

    def look(self, step: int, metrics: Metrics) -> str | None:
        seconds = {} if self.file is None else times_of(self.file, step)
        before = {part: self.recent(f"time/{part}", value, self.config.window) for part, value in seconds.items()}
        if "step" not in seconds or len(before["step"]) < self.config.settle:
            return None
        now, usual = seconds["step"], median(before["step"])
        if now <= max(self.config.floor_s, self.config.factor * usual):
            return None
        longer = {part: seconds[part] - median(before[part]) for part in seconds if part != "step" and before[part]}
        part = max(longer, key=lambda name: longer[name], default="step")
        return self.message("slow_step", now=now, usual=usual, count=len(before["step"]), part=part)


def times_of(metrics: Path, step: int) -> Mapping[str, float]:
    """Seconds of the parts of a step whose row was written last; {} on a rank that writes none."""
    if not metrics.is_file():
        return {}
    with metrics.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
        lines = file.read().splitlines()
    row = json.loads(lines[-1]) if lines else {}
    return row.get("time", {}) if row.get("step") == step else {}
