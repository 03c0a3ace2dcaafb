"""ECHO: a cross-entropy on the environment's answers beside the policy gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rlhf_core.rollouts import Rollout
from rlhf_plugin_algorithms.estimated import Estimated
from rlhf_plugin_algorithms.signals import Floats, Scored, Signal, Signals, chosen


class Echo(Estimated):
    """See EchoConfig."""

    def signals(self, scored: Scored) -> Signals:
        """The estimator's, and each role's weight at the tokens of its turns."""
        made = super().signals(scored)
        weights: list[Any] = [self._weights(rollout) for rollout in scored.rollouts]
        answered = any(np.any(row) for row in weights)
        nothing = "" if answered or not made.nothing else f"{made.nothing}, and no environment answered"
        return replace(made, signals=[*made.signals, Signal("cross_entropy", weights)], nothing=nothing)

    def _weights(self, rollout: Rollout) -> Floats:
        weights_T = np.zeros(len(rollout.completion_ids), np.float32)
        for turn in rollout.turns:
            weights_T[slice(*turn.span)] = self.config.roles.get(turn.role, 0.0)
        return np.where(chosen(rollout), np.float32(0), weights_T)
