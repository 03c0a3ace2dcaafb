"""Several rewards at once: each normalised before they are added, or after (Liu et al. 2026, GDPO)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlhf_core.config import ConfigError
from rlhf_core.losses import Advantages, rounding
from rlhf_core.rewards import Score
from rlhf_core.rollouts import Rollout
from rlhf_plugin_grpo.groups import Array, centred, one_each, rows_by_group, spread

if TYPE_CHECKING:
    from rlhf_plugin_grpo.advantage_config import GdpoConfig

KL = "kl"
"""Part that the core's KL penalty leaves: a difference of log-probabilities summed over a completion. While the policy
is still the reference, it is the rounding of these sums."""


class Gdpo:
    r"""Group-reward-decoupled normalisation: a reward of small size counts as much as its weight says.

    :math:`a_i = \sum_k w_k (r_{ki} - \mathrm{mean}_g(r_k)) / (\mathrm{std}_g(r_k) + \epsilon)`, and
    :math:`A_i = a_i / (\mathrm{std}_{batch}(a) + \epsilon)`. (The batch's mean of a, which the paper takes off, is zero
    by construction.) ``sum_then_normalise`` is what it replaces: the group-normalised weighted sum.
    """

    def __init__(self, config: GdpoConfig) -> None:
        self.weights, self.order = config.parts, config.order
        self.epsilon, self.floor = config.epsilon, config.relative_floor

    def estimate(self, rollouts: Sequence[Rollout], scores: Sequence[Score], group_ids: Sequence[int]) -> Advantages:
        """Return one float per rollout, or None where its score is missing.

        Raises:
            ConfigError: a score lacks a part that has a weight.
        """
        advantage_of: dict[int, float] = {}
        for rows in rows_by_group(scores, group_ids):
            advantage_of |= zip(rows, self._group_sum(rollouts, scores, rows))
        std = spread(np.array(list(advantage_of.values())), self.floor)
        if self.order == "normalise_then_sum":
            advantage_of = {i: value / (std + self.epsilon) if std else 0.0 for i, value in advantage_of.items()}
        return Advantages(one_each(len(scores), advantage_of), {"advantage/batch_std": std})

    def _group_sum(self, rollouts: Sequence[Rollout], scores: Sequence[Score], rows: Sequence[int]) -> Array:
        """``a`` of one group: the weighted sum of its normalised parts, or its normalised weighted sum, ``[G]``."""
        weights = self.weights or {"": 1.0}
        parts = {name: self._part(scores, rows, name) for name in weights}
        least = {KL: rounding(max(float(np.abs(rollouts[i].logprobs_T).sum() + 1) for i in rows))}
        varying = [(weights[n], part) for n, part in parts.items() if spread(part, self.floor, least.get(n, 0.0))]
        if not varying:
            varying = [(0.0, next(iter(parts.values())))]
        if self.order == "sum_then_normalise":
            varying = [(1.0, np.sum([weight * part for weight, part in varying], axis=0))]
        return np.sum([weight * self._normalise(part) for weight, part in varying], axis=0)

    def _normalise(self, rewards_G: Array) -> Array:
        std = spread(rewards_G, self.floor)
        return centred(rewards_G, self.floor) / (std + self.epsilon) if std else np.zeros_like(rewards_G)

    def _part(self, scores: Sequence[Score], rows: Sequence[int], name: str) -> Array:
        values = [scores[i].value if not name else scores[i].parts.get(name) for i in rows]
        if None in values:
            part_names = sorted({part for i in rows for part in scores[i].parts})
            raise ConfigError(
                f"a score has no part '{name}', which advantage.parts gives a weight",
                why=f"its parts: {', '.join(part_names) or 'none'}",
                fix="name parts that the reward gives",
            )
        return np.array(values, np.float64)
