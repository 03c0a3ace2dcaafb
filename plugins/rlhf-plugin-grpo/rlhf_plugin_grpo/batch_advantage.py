"""Advantages whose scale, or baseline, is that of the whole rollout batch of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlhf_core.losses import Advantages
from rlhf_core.rewards import Score
from rlhf_core.rollouts import Rollout
from rlhf_plugin_grpo.groups import centred, one_each, rows_by_group, spread, values

if TYPE_CHECKING:
    from rlhf_plugin_grpo.advantage_config import BatchNormConfig, ReinforcePPConfig


class Raw:
    """``A_i = r_i``: the score itself, no baseline (Williams 1992)."""

    def estimate(self, rollouts: Sequence[Rollout], scores: Sequence[Score], group_ids: Sequence[int]) -> Advantages:
        """Return one float per rollout, or None where its score is missing."""
        return Advantages([s.value if s.ok else None for s in scores])


class BatchNorm:
    """``A_i = (r_i - mean(group)) / (std(batch) + epsilon)`` (Liu et al. 2025, "Tricks or Traps", Lite PPO).

    An easy or hopeless prompt, whose few odd completions a group's own small std would blow up, keeps its size.
    """

    def __init__(self, config: BatchNormConfig) -> None:
        self.epsilon, self.floor = config.epsilon, config.relative_floor

    def estimate(self, rollouts: Sequence[Rollout], scores: Sequence[Score], group_ids: Sequence[int]) -> Advantages:
        """Return one float per rollout, or None where its score is missing."""
        groups = rows_by_group(scores, group_ids)
        std = spread(values(scores, [i for rows in groups for i in rows]), self.floor)
        advantage_of: dict[int, float] = {}
        for rows in groups:
            advantages = centred(values(scores, rows), self.floor)
            advantage_of |= zip(rows, advantages / (std + self.epsilon) if std else np.zeros_like(advantages))
        return Advantages(one_each(len(scores), advantage_of), {"advantage/batch_std": std})


class ReinforcePP:
    """``A = (r - mean(batch)) / (std(batch) + epsilon)`` (REINFORCE++: Hu et al. 2025, eq. 5).

    Differs: each completion counts once in mean and std, where the authors' code counts it once per token.
    With ``baseline: group`` the group's mean is taken off first (REINFORCE++-baseline).
    """

    def __init__(self, config: ReinforcePPConfig) -> None:
        self.baseline, self.epsilon, self.floor = config.baseline, config.epsilon, config.relative_floor

    def estimate(self, rollouts: Sequence[Rollout], scores: Sequence[Score], group_ids: Sequence[int]) -> Advantages:
        """Return one float per rollout, or None where its score is missing."""
        groups = rows_by_group(scores, group_ids)
        rows = [i for group in groups for i in group]
        rewards = values(scores, rows)
        std = spread(rewards, self.floor)
        if self.baseline == "group":
            parts = [centred(values(scores, group), self.floor) for group in groups]
            rewards = np.concatenate([*parts, np.zeros(0)])
            std = float(rewards.std(ddof=1)) if std else 0.0
        advantages = (rewards - rewards.mean()) / (std + self.epsilon) if std else np.zeros_like(rewards)
        return Advantages(one_each(len(scores), dict(zip(rows, advantages))), {"advantage/batch_std": std})
