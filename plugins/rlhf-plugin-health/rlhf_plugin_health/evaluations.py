"""What monitors of held-out evaluations share: they hear of each, and know which are on other prompts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from rlhf_core.config import BuildContext, ComponentConfig
from rlhf_core.hooks import StepMetrics, hookimpl


class EvaluationMonitor(ABC):
    """Hears of every evaluation in which its metric is a number. A subclass implements :meth:`read`."""

    def __init__(self, config: ComponentConfig, ctx: BuildContext, metric: str) -> None:
        self.name, self.metric, self.session = config.name, metric, ctx.session
        trainer = getattr(ctx.config, "trainer", None)
        counts = [int(getattr(trainer, name, 0) or 0) for name in ("gold_samples", "eval_samples")]
        self.others = (0, getattr(trainer, "steps", None)) if counts[0] > counts[1] else ()
        """Steps whose evaluation is on more prompts than the others, where there are gold scores."""
        if self.session is not None:
            self.session.hooks.manager.register(self, name=f"monitor '{config.name}' {id(self)}")

    @abstractmethod
    def read(self, step: int, value: float) -> None:
        """Take note of an evaluation that can be compared with the others."""

    def observe(self, step: int, metrics: Mapping[str, float]) -> str | None:
        """Read an evaluation that stands among a step's metrics."""
        self._read(step, metrics)
        return None

    @hookimpl
    def rlhf_eval_end(self, event: StepMetrics) -> None:
        """Read an evaluation; not one on more prompts than those between, whose mean is of another set."""
        last = event.step in self.others or (self.session is not None and self.session.hooks.stop_reason is not None)
        if not (self.others and last and any(name.startswith("eval/gold/") for name in event.metrics)):
            self._read(event.step, event.metrics)

    def _read(self, step: int, metrics: Mapping[str, float]) -> None:
        value = float(metrics.get(self.metric, math.nan))
        if math.isfinite(value):
            self.read(step, value)

    def close(self) -> None:
        """Hear no more."""
        if self.session is not None and self.session.hooks.manager.is_registered(self):
            self.session.hooks.manager.unregister(self)

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What a resumed run goes on with."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
