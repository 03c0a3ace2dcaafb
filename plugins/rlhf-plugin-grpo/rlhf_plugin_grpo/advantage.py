"""Group-relative advantages (Shao et al. 2024, DeepSeekMath, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_core.api import Advantages, Rollout, Score
from rlhf_core.functional.groups import group_normalize
from rlhf_plugin_grpo.config import GroupNormConfig


class GroupNorm:
    """``A_i = (r_i - mean(r)) / (std(r) + epsilon)`` within each prompt's group.

    The standard deviation is the sample's (n - 1), as in the reference implementations. Missing scores take
    no part and get no advantage; a group with fewer than two scores, or with equal ones, gets zeros.
    """

    def __init__(self, config: GroupNormConfig) -> None:
        self.config = config

    def estimate(self, rollouts: Sequence[Rollout], scores: Sequence[Score], group_ids: Sequence[int]) -> Advantages:
        """Return one float per rollout, or None where its score is missing."""
        values: list[float | None] = [None] * len(scores)
        stds: list[float] = []
        for group in dict.fromkeys(group_ids):
            rows = [i for i, g in enumerate(group_ids) if g == group and scores[i].ok]
            rewards = np.array([scores[i].value for i in rows], np.float64)
            for i, advantage in zip(rows, self.normalise(rewards)):
                values[i] = float(advantage)
            stds += [float(rewards.std(ddof=1))] if len(rows) > 1 else []
        return Advantages(values, {"advantage/group_std": float(np.mean(stds))} if stds else {})

    def normalise(self, rewards_G: np.ndarray) -> np.ndarray:
        """Advantages of one group, float64, shape ``[G]``."""
        return group_normalize(rewards_G, by_std=self.config.scale == "std", epsilon=self.config.epsilon,
                               relative_floor=self.config.relative_floor)
