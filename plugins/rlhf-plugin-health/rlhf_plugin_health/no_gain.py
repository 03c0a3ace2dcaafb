"""Early stop on held-out evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.hooks import StopRun, hookimpl
from rlhf_plugin_health.config import NoGainConfig


class NoGain:
    """Remembers the best evaluation; the run ends with a checkpoint and its final model, which is the last one."""

    def __init__(self, config: NoGainConfig, ctx: BuildContext) -> None:
        self.config, self.session = config, ctx.session
        trainer = getattr(ctx.config, "trainer", None)
        counts = [int(getattr(trainer, name, 0) or 0) for name in ("gold_samples", "eval_samples")]
        self.others = (0, getattr(trainer, "steps", None)) if counts[0] > counts[1] else ()
        """Steps whose evaluation is on more prompts than the others, where there are gold scores."""
        self.best: float | None = None
        self.streak = 0
        """Evaluations in a row without a gain."""
        if self.session is not None:
            self.session.hooks.manager.register(self, name=f"monitor '{config.name}' {id(self)}")

    def observe(self, step: int, metrics: Mapping[str, float]) -> str | None:
        """Read an evaluation that stands among a step's metrics."""
        self.read(step, metrics)
        return None

    @hookimpl
    def rlhf_eval_end(self, event: Any) -> None:
        """Read an evaluation; not one on more prompts than those between, whose mean is of another set."""
        if event.step not in self.others or not any(name.startswith("eval/gold/") for name in event.metrics):
            self.read(event.step, event.metrics)

    def read(self, step: int, metrics: Mapping[str, float]) -> None:
        value = float(metrics.get(self.config.metric, math.nan))
        if not math.isfinite(value):
            return
        if self.best is None or value > self.best + self.config.least:
            self.best, self.streak = value, 0
            return
        self.streak += 1
        if self.streak >= self.config.patience:
            name, best = self.config.metric, self.best
            raise StopRun(f"{self.config.name}: {name} is {value:.4g} at step {step}, and was {best:.4g} at best")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "streak": self.streak}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.streak = state["best"], int(state["streak"])

    def close(self) -> None:
        if self.session is not None and self.session.hooks.manager.is_registered(self):
            self.session.hooks.manager.unregister(self)
