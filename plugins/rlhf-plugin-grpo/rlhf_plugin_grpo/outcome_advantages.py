"""Estimators for verdicts: maximum likelihood, pass@k, the best of a group, and a baseline for each token."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, sqrt
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from rlhf_core.config import ConfigError
from rlhf_core.losses import Advantages
from rlhf_core.rewards import Score
from rlhf_core.rollouts import Rollout
from rlhf_plugin_grpo.advantage import centred, rows_by_group, scatter_to_batch, spread, values

if TYPE_CHECKING:
    from rlhf_plugin_grpo.advantage_config import (
        BestOfGroupConfig,
        MaxRLConfig,
        OptimalTokenBaselineConfig,
        PassAtKConfig,
    )


class MaxRL:
    r""":math:`A_i = (r_i - \bar r) / \bar r` (maximum-likelihood RL, 2026, arXiv 2602.02710).

    Of verdicts 0 and 1 it is the gradient of the likelihood of a right answer, estimated with the group's tries:
    rare successes weigh more than by the standard deviation. Zeros where no completion of the group is right.
    """

    by_group: ClassVar[bool] = True

    def __init__(self, config: MaxRLConfig) -> None:
        self.floor = config.relative_floor

    def estimate(self, rollouts: Sequence[Rollout], scores: Sequence[Score], group_ids: Sequence[int]) -> Advantages:
        advantage_of: dict[int, float] = {}
        for rows in rows_by_group(scores, group_ids):
            rewards = values(scores, rows)
            if rewards.min() < 0:
                raise ConfigError(
                    f"advantage 'max_rl' got the score {rewards.min():g}",
                    why="it divides by the group's mean, which means something for scores of 0 and more only",
                    fix="use a reward that gives verdicts, such as --reward verifier, or --advantage group_norm",
                )
            mean = float(rewards.mean())
            advantage_of |= zip(rows, centred(rewards, self.floor) / (mean or 1.0))
        return Advantages(scatter_to_batch(len(scores), advantage_of))


class PassAtK:
    r"""Advantages of all sets of k of the group's completions, each paid 1 if one is right (Chen et al. 2025).

    With n completions, w of them wrong: :math:`\bar R = 1 - \binom{w}{k} / \binom{n}{k}` and
    :math:`\sigma = \sqrt{\bar R (1 - \bar R)}`. A right one gets :math:`(1 - \bar R) / \sigma`, a wrong one
    :math:`(1 - \bar R - \binom{w-1}{k-1} / \binom{n-1}{k-1}) / \sigma`; all get 0 where sigma is 0.
    k = 1 is GRPO with the population's standard deviation.
    """

    by_group: ClassVar[bool] = True

    def __init__(self, config: PassAtKConfig) -> None:
        self.k, self.threshold = config.k, config.threshold

    def estimate(self, rollouts: Sequence[Rollout], scores: Sequence[Score], group_ids: Sequence[int]) -> Advantages:
        advantage_of: dict[int, float] = {}
        for rows in rows_by_group(scores, group_ids):
            right = values(scores, rows) > self.threshold
            n, wrong = len(rows), int((~right).sum())
            k = min(self.k, n)  # a group that lost completions
            fails = comb(wrong, k) / comb(n, k)
            sigma = sqrt(fails * (1 - fails)) or 1.0
            of_wrong = comb(wrong - 1, k - 1) / comb(n - 1, k - 1) if wrong else 0.0
            given = np.where(right, fails, fails - of_wrong) / sigma if 0 < fails < 1 else np.zeros(n)
            advantage_of |= zip(rows, given)
        return Advantages(scatter_to_batch(len(scores), advantage_of))


class BestOfGroup:
    """``max(r) - second(r)`` for the best completion of a group, over the group's std; 0 for the others.

    What the group's best score would lose without a completion: the gradient of the expected maximum (Tang et al. 2025,
    arXiv 2503.19595; verl's ``grpo_passk``). All 0 where two completions share the best score.
    """

    by_group: ClassVar[bool] = True

    def __init__(self, config: BestOfGroupConfig) -> None:
        self.by_std, self.epsilon, self.floor = config.scale == "std", config.epsilon, config.relative_floor

    def estimate(self, rollouts: Sequence[Rollout], scores: Sequence[Score], group_ids: Sequence[int]) -> Advantages:
        advantage_of: dict[int, float] = {}
        for rows in rows_by_group(scores, group_ids):
            rewards, given = values(scores, rows), np.zeros(len(rows))
            if std := spread(rewards, self.floor):
                second, first = np.sort(rewards)[-2:]
                given[int(rewards.argmax())] = (first - second) / (std + self.epsilon if self.by_std else 1.0)
            advantage_of |= zip(rows, given)
        return Advantages(scatter_to_batch(len(scores), advantage_of))


class OptimalTokenBaseline:
    r""":math:`A_{i,t} = r_i - b_t`, :math:`b_t = \sum_i W_{i,t} r_i / \sum_i W_{i,t}` over the group at t.

    (Optimal token baseline, 2026, as verl 0.9 has it.) :math:`W_{i,t} = \sum_{j \le t} (1 - 2\pi_j + \sum_v \pi_v^2)`
    is the squared gradient with respect to the logits, so far. Differs: only the chosen token's share of
    :math:`\sum_v \pi_v^2` is known, so that each term is :math:`(1 - \pi_j)^2`.
    """

    by_group: ClassVar[bool] = True

    def __init__(self, config: OptimalTokenBaselineConfig) -> None:
        self.zero_tail, self.floor = config.zero_tail, config.relative_floor

    def estimate(self, rollouts: Sequence[Rollout], scores: Sequence[Score], group_ids: Sequence[int]) -> Advantages:
        given: list[float | npt.NDArray[np.float32] | None] = [None] * len(scores)
        for rows in rows_by_group(scores, group_ids):
            lengths = np.array([len(rollouts[i].logprobs_T) for i in rows])
            there_GT = np.arange(lengths.max(initial=0)) < lengths[:, None]
            weight_GT = np.zeros(there_GT.shape)
            for g, i in enumerate(rows):
                chosen_T = np.ones(lengths[g], bool) if rollouts[i].mask_T is None else rollouts[i].mask_T
                weight_GT[g, : lengths[g]] = (np.expm1(rollouts[i].logprobs_T) ** 2 * chosen_T).cumsum()
            weight_GT *= there_GT
            rewards = values(scores, rows)
            centred_G, weight_T = centred(rewards, self.floor), weight_GT.sum(0)
            baseline_T = np.divide(
                (rewards[:, None] * weight_GT).sum(0), weight_T, where=weight_T > 0, out=weight_T * 0
            )
            baseline_T[(weight_T == 0)] = rewards.mean()
            if self.zero_tail:
                baseline_T[there_GT.sum(0) < 2] = 0.0
            for g, i in enumerate(rows):
                advantage_T = rewards[g] - baseline_T[: lengths[g]] if centred_G.any() else np.zeros(lengths[g])
                given[i] = advantage_T.astype(np.float32)
        return Advantages(given)
