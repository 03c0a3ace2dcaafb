"""Group-relative advantages (Shao et al. 2024, DeepSeekMath, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from rlhf_core.losses import Advantages
from rlhf_core.rewards import Score
from rlhf_core.rollouts import Rollout
from rlhf_plugin_grpo.groups import Array, centred, group_normalize, one_each, rows_by_group, values

if TYPE_CHECKING:
    from rlhf_plugin_grpo.advantage_config import (
        GroupMeanConfig,
        GroupNormConfig,
        LeaveOneOutConfig,
        OptimalBaselineConfig,
    )


class GroupNorm:
    """``A_i = (r_i - mean(r)) / (std(r) + epsilon)`` within each prompt's group.

    The standard deviation is the sample's (n - 1), as in the reference implementations. Missing scores take
    no part and get no advantage; a group with fewer than two scores, or with equal ones, gets zeros.
    """

    def __init__(self, config: GroupNormConfig) -> None:
        self.config = config

    def estimate(self, rollouts: Sequence[Rollout], scores: Sequence[Score], group_ids: Sequence[int]) -> Advantages:
        """Return one float per rollout, or None where its score is missing."""
        advantage_of: dict[int, float] = {}
        stds: list[float] = []
        for rows in rows_by_group(scores, group_ids):
            rewards = values(scores, rows)
            advantage_of |= zip(rows, self.normalise(rewards))
            stds += [float(rewards.std(ddof=1))] if len(rows) > 1 else []
        metrics = {"advantage/group_std": float(np.mean(stds))} if stds else {}
        return Advantages(one_each(len(scores), advantage_of), metrics)

    def normalise(self, rewards_G: Array) -> Array:
        """Advantages of one group, float64, shape ``[G]``."""
        return group_normalize(
            rewards_G,
            by_std=self.config.scale == "std",
            epsilon=self.config.epsilon,
            relative_floor=self.config.relative_floor,
        )


class GroupMean:
    """``A_i = r_i - b``: the scores less their group's mean, with no scale (Dr. GRPO: Liu et al. 2025)."""

    baseline: ClassVar[Literal["mean", "leave_one_out"]] = "mean"

    def __init__(self, config: GroupMeanConfig | LeaveOneOutConfig) -> None:
        self.floor = config.relative_floor

    def estimate(self, rollouts: Sequence[Rollout], scores: Sequence[Score], group_ids: Sequence[int]) -> Advantages:
        """Return one float per rollout, or None where its score is missing."""
        advantage_of: dict[int, float] = {}
        for rows in rows_by_group(scores, group_ids):
            count = len(rows)
            factor = count / (count - 1) if self.baseline == "leave_one_out" and count > 1 else 1.0
            advantage_of |= zip(rows, centred(values(scores, rows), self.floor) * factor)
        return Advantages(one_each(len(scores), advantage_of))


class LeaveOneOut(GroupMean):
    """``A_i = r_i - b``, b the mean of the *other* completions (RLOO: Ahmadian et al. 2024, after Kool et al. 2019).

    Unbiased, since b does not depend on the completion's own score: n / (n - 1) times :class:`GroupMean`'s.
    """

    baseline = "leave_one_out"


class OptimalBaseline:
    r"""``A_i = r_i - b`` with the baseline of least gradient variance (Hao et al. 2025, OPO, eq. 4).

    :math:`b = \sum_i w_i r_i / \sum_i w_i` over the group, w the squared norm of the completion's gradient of the
    logprob. ``length`` is the paper's approximation, w = number of tokens (gradients of tokens orthogonal and of equal
    size). ``gradient``, which is not in the paper, weighs each token by :math:`(1 - \pi(y_t))^2`, the squared gradient
    with respect to the chosen token's own logit: certain tokens count little.
    """

    def __init__(self, config: OptimalBaselineConfig) -> None:
        self.weight, self.floor = config.weight, config.relative_floor

    def estimate(self, rollouts: Sequence[Rollout], scores: Sequence[Score], group_ids: Sequence[int]) -> Advantages:
        """Return one float per rollout, or None where its score is missing."""
        advantage_of: dict[int, float] = {}
        for rows in rows_by_group(scores, group_ids):
            rewards = values(scores, rows)
            weights = np.array([self._weight(rollouts[i]) for i in rows], np.float64)
            if weights.sum() == 0:
                weights[:] = 1.0
            advantage_of |= zip(rows, centred(rewards, self.floor, float(weights @ rewards / weights.sum())))
        return Advantages(one_each(len(scores), advantage_of))

    def _weight(self, rollout: Rollout) -> float:
        """Only tokens that the policy chose."""
        chosen_T = rollout.logprobs_T if rollout.mask_T is None else rollout.logprobs_T[rollout.mask_T]
        return float(len(chosen_T)) if self.weight == "length" else float((np.expm1(chosen_T) ** 2).sum())
