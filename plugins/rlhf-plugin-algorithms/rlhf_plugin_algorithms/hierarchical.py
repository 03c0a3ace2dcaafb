"""GRPO for proposers and solvers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

import numpy as np

from rlhf_core.rollouts import Rollout
from rlhf_plugin_algorithms.catalogue import HierarchicalGrpoConfig
from rlhf_plugin_algorithms.signals import Scored, Signal, Signals


class HierarchicalGrpo:
    """See HierarchicalGrpoConfig."""

    def __init__(self, config: HierarchicalGrpoConfig) -> None:
        self.config = config

    def signals(self, scored: Scored) -> Signals:
        """Each reward less the mean of those it is compared with."""
        compared: dict[Hashable, list[int]] = defaultdict(list)
        for n, (rollout, score, group) in enumerate(zip(scored.rollouts, scored.scores, scored.group_ids)):
            if score.ok:
                compared[group, *self._key(rollout)].append(n)
        weights: list[float | None] = [None] * len(scored.rollouts)
        for places in compared.values():
            rewards = np.array([scored.scores[n].value for n in places], np.float64)
            centred = rewards - rewards.mean()
            for n, value in zip(places, centred * (np.ptp(rewards) > 0)):
                weights[n] = float(value)
        nothing = "" if any(weights) else "all that are compared have equal scores"
        return Signals([Signal("policy_gradient", weights)], nothing=nothing)

    def _key(self, rollout: Rollout) -> tuple[Hashable, ...]:
        role = rollout.info.get(self.config.role_key)
        return (role, str(rollout.info.get(self.config.problem_key))) if role in self.config.solvers else (role,)
