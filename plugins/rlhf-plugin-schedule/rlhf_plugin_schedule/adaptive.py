r"""The coefficient of the entropy bonus follows the entropy (He et al. 2025, Skywork-OR1, arXiv 2505.22312)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from rlhf_core.rl.update import UpdateStep
from rlhf_plugin_schedule.schedules import Schedule


class AdaptiveEntropy:
    r""":math:`\alpha_k = c_k\,[e_k \le target]`, and :math:`c_{k+1} = c_k \pm \delta`, plus under the target.

    ``c`` stays between 0 and the schedule's ``to``; :math:`e_k` is the metric ``entropy`` of the step before, so that
    the first step has no bonus, as in TRL 1.16. Differs from both: once a step, not once an optimizer update.
    """

    def __init__(self, schedule: Schedule, first: float) -> None:
        assert schedule.target is not None
        self.target, self.delta, self.most = schedule.target, schedule.delta, float(schedule.last)
        self.coefficient, self.entropy = float(first), math.inf

    @property
    def value(self) -> float:
        """Coefficient of the step that comes."""
        return self.coefficient if self.entropy <= self.target else 0.0

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Take note of a step's update; one that trained on nothing changes nothing."""
        if (entropy := metrics.get("entropy")) is None:
            return
        change = self.delta if entropy <= self.target else -self.delta
        self.coefficient, self.entropy = min(max(self.coefficient + change, 0.0), self.most), entropy

    def state_dict(self) -> dict[str, float]:
        """For a checkpoint."""
        return {"coefficient": self.coefficient, "entropy": self.entropy}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from :meth:`state_dict`."""
        self.coefficient, self.entropy = state["coefficient"], state["entropy"]


class ObservedUpdate(UpdateStep):
    """The core's update, whose metrics somebody else reads too."""

    observe_metrics: Callable[[Mapping[str, float]], None]

    @classmethod
    def of(cls, update: UpdateStep, observe: Callable[[Mapping[str, float]], None]) -> ObservedUpdate:
        """The same update, observed."""
        observed = cls(**{field.name: getattr(update, field.name) for field in fields(update)})
        observed.observe_metrics = observe
        return observed

    def __call__(self, *args: Any, **options: Any) -> dict[str, float]:
        """See :class:`UpdateStep`."""
        metrics = super().__call__(*args, **options)
        self.observe_metrics(metrics)
        return metrics
