"""Early stop on held-out evaluations."""

from __future__ import annotations

from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.hooks import StopRun
from rlhf_plugin_health.config import NoGainConfig
from rlhf_plugin_health.evaluations import EvaluationMonitor


class NoGain(EvaluationMonitor):
    """Remembers the best evaluation; the run ends with a checkpoint and its final model, which is the last one."""

    def __init__(self, config: NoGainConfig, ctx: BuildContext) -> None:
        self.config = config
        self.best: float | None = None
        self.streak = 0
        """Evaluations in a row without a gain."""
        super().__init__(config, ctx, config.metric)

    def read(self, step: int, value: float) -> None:
        """End the run after ``patience`` evaluations without a gain."""
        if self.best is None or value > self.best + self.config.least:
            self.best, self.streak = value, 0
            return
        self.streak += 1
        if self.streak >= self.config.patience:
            raise StopRun(f"{self.name}: {self.metric} is {value:.4g} at step {step}, and was {self.best:.4g} at best")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "streak": self.streak}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.streak = state["best"], int(state["streak"])
