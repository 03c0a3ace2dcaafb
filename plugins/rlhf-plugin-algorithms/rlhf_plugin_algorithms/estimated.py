"""Algorithms whose policy gradient is an advantage estimator's: GRPO, RLOO, PPO and others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlhf_core.config import BuildContext
from rlhf_plugin_algorithms.signals import Scored, Signal, Signals, chosen


class Estimated:
    """``policy_gradient`` with the estimator's advantages, and ``value`` with its returns if it has a critic."""

    def __init__(self, config: Any, ctx: BuildContext) -> None:
        self.config = config
        self.estimator: Any = config.advantage.build(ctx)
        self.critic = self.estimator if getattr(self.estimator, "critic", None) is not None else None

    def signals(self, scored: Scored) -> Signals:
        """The estimator's, at the tokens that the policy chose."""
        values = () if scored.values is None or self.critic is None else (scored.values,)
        made = self.estimator.estimate(scored.rollouts, scored.scores, scored.group_ids, *values)
        masks = [chosen(rollout) for rollout in scored.rollouts]
        weights = [a if np.ndim(a) == 0 else np.where(m, a, np.float32(0)) for a, m in zip(made.values, masks)]
        signals = [Signal("policy_gradient", weights)]
        if made.returns is not None:
            signals.append(Signal("value", [None if a is None else 1.0 for a in weights], targets=made.returns))
        learns = made.returns is not None or any(np.any(w) for w in weights if w is not None)
        return Signals(signals, metrics=made.metrics, nothing="" if learns else "each group has equal scores")

    def state_dict(self) -> dict[str, Any]:
        """The estimator's, if it has one."""
        return {"estimator": self.estimator.state_dict()} if hasattr(self.estimator, "state_dict") else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it."""
        if "estimator" in state:
            self.estimator.load_state_dict(state["estimator"])
