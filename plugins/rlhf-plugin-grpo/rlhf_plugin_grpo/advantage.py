"""Advantages of groups (Shao et al. 2024, DeepSeekMath, section 4.1), of the whole batch, and of several rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from rlhf_core.config import ConfigError
from rlhf_core.losses import Advantages
from rlhf_core.rewards import Score
from rlhf_core.rollouts import Rollout

if TYPE_CHECKING:
    from rlhf_plugin_grpo.advantage_config import (
        BatchNormConfig,
        GdpoConfig,
        GroupMeanConfig,
        GroupNormConfig,
        KeepConfig,
        LeaveOneOutConfig,
        OptimalBaselineConfig,
        ReinforcePPConfig,
    )


Array = npt.NDArray[np.float64]
"""``_G`` completions of one prompt, ``_N`` scored completions of the batch."""

RELATIVE_FLOOR = 2.0**-19
"""A standard deviation below this share of the largest score is rounding, by default: 16 roundings of float32."""


def rounding(scale: float) -> float:
    """What rounding may leave of float32 arithmetic on numbers up to ``scale``, whose true result is 0."""
    return RELATIVE_FLOOR * scale


def rows_by_group(scores: Sequence[Score], group_ids: Sequence[int]) -> list[list[int]]:
    """Positions of each group's scored completions; groups without any are left out."""
    rows: dict[int, list[int]] = {}
    for i, (score, group) in enumerate(zip(scores, group_ids, strict=True)):
        if score.ok:
            rows.setdefault(group, []).append(i)
    return list(rows.values())


def values(scores: Sequence[Score], rows: Sequence[int]) -> Array:
    """The scores at some positions, float64."""
    return np.array([scores[i].value for i in rows], np.float64)


def scatter_to_batch(count: int, value_of: Mapping[int, float]) -> list[float | None]:
    return [float(value_of[i]) if i in value_of else None for i in range(count)]


def spread(values_N: Array, relative_floor: float = RELATIVE_FLOOR, least: float = 0.0) -> float:
    """Standard deviation (n - 1); 0 for fewer than two values and where it is but rounding: up to ``relative_floor`` of
    the largest value's size, or up to ``least`` where values are differences of larger numbers."""
    if len(values_N) < 2:
        return 0.0
    std = float(values_N.std(ddof=1))
    return std if std > max(least, relative_floor * float(np.abs(values_N).max())) else 0.0


def centred(values_N: Array, relative_floor: float = RELATIVE_FLOOR, baseline: float | None = None) -> Array:
    """Values less a baseline (their mean by default); exact zeros where they are constant (see :func:`spread`)."""
    if spread(values_N, relative_floor) == 0.0:
        return np.zeros_like(values_N)
    return values_N - (values_N.mean() if baseline is None else baseline)


def group_normalize(rewards_G: Array, *, by_std: bool, epsilon: float = 1e-6, relative_floor: float = 0.0) -> Array:
    r""":math:`(r_i - \bar r) / (\mathrm{std}(r) + \epsilon)` (Shao et al. 2024, section 4.1).

    Float64 ``[G]``; zeros for fewer than two rewards, or equal ones (see :func:`spread`). Without ``by_std`` only the
    mean is subtracted (Liu et al. 2025, Dr. GRPO).
    """
    centred_G, std = centred(rewards_G, relative_floor), spread(rewards_G, relative_floor)
    return centred_G / (std + epsilon) if by_std and std else centred_G


class GroupNorm:
    """``A_i = (r_i - mean(r)) / (std(r) + epsilon)`` within each prompt's group.

    The standard deviation is the sample's (n - 1), as in the reference implementations. Missing scores take
    no part and get no advantage; a group with fewer than two scores, or with equal ones, gets zeros.
    """

    by_group: ClassVar[bool] = True

    def __init__(self, config: GroupNormConfig) -> None:
        self.config = config

    def estimate(self, rollouts: Sequence[Rollout], scores: Sequence[Score], group_ids: Sequence[int]) -> Advantages:
        advantage_of: dict[int, float] = {}
        stds: list[float] = []
        config = self.config
        for rows in rows_by_group(scores, group_ids):
            rewards = values(scores, rows)
            normalised = group_normalize(
                rewards, by_std=config.scale == "std", epsilon=config.epsilon, relative_floor=config.relative_floor
            )
            advantage_of |= zip(rows, normalised)
            stds += [float(rewards.std(ddof=1))] if len(rows) > 1 else []
        metrics = {"advantage/group_std": float(np.mean(stds))} if stds else {}
        return Advantages(scatter_to_batch(len(scores), advantage_of), metrics)


class GroupMean:
    """``A_i = r_i - b``: the scores less their group's mean, with no scale (Dr. GRPO: Liu et al. 2025)."""

    by_group: ClassVar[bool] = True
    baseline: ClassVar[Literal["mean", "leave_one_out"]] = "mean"

    def __init__(self, config: GroupMeanConfig | LeaveOneOutConfig) -> None:
        self.floor = config.relative_floor

    def estimate(self, rollouts: Sequence[Rollout], scores: Sequence[Score], group_ids: Sequence[int]) -> Advantages:
        advantage_of: dict[int, float] = {}
        for rows in rows_by_group(scores, group_ids):
            count = len(rows)
            factor = count / (count - 1) if self.baseline == "leave_one_out" and count > 1 else 1.0
            advantage_of |= zip(rows, centred(values(scores, rows), self.floor) * factor)
        return Advantages(scatter_to_batch(len(scores), advantage_of))


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

    by_group: ClassVar[bool] = True

    def __init__(self, config: OptimalBaselineConfig) -> None:
        self.weight, self.floor = config.weight, config.relative_floor

    def estimate(self, rollouts: Sequence[Rollout], scores: Sequence[Score], group_ids: Sequence[int]) -> Advantages:
        advantage_of: dict[int, float] = {}
        for rows in rows_by_group(scores, group_ids):
            rewards = values(scores, rows)
            weights = np.array([self._weight(rollouts[i]) for i in rows], np.float64)
            if weights.sum() == 0:
                weights[:] = 1.0
            advantage_of |= zip(rows, centred(rewards, self.floor, float(weights @ rewards / weights.sum())))
        return Advantages(scatter_to_batch(len(scores), advantage_of))

    def _weight(self, rollout: Rollout) -> float:
        """Only tokens that the policy chose."""
        chosen_T = rollout.logprobs_T if rollout.mask_T is None else rollout.logprobs_T[rollout.mask_T]
        return float(len(chosen_T)) if self.weight == "length" else float((np.expm1(chosen_T) ** 2).sum())


class Raw:
    """``A_i = r_i``: the score itself, no baseline (Williams 1992)."""

    by_group: ClassVar[bool] = True

    def estimate(self, rollouts: Sequence[Rollout], scores: Sequence[Score], group_ids: Sequence[int]) -> Advantages:
        return Advantages([s.value if s.ok else None for s in scores])


class Keep:
    """``A_i = 1`` for completions that are kept, none for the others (expert iteration: Anthony et al. 2017; rejection
    sampling fine-tuning: Yuan et al. 2023). Equal scores are taken in the order of sampling.
    """

    reads_tokens: ClassVar[bool] = False

    def __init__(self, config: KeepConfig) -> None:
        self.config = config

    def estimate(self, rollouts: Sequence[Rollout], scores: Sequence[Score], group_ids: Sequence[int]) -> Advantages:
        kept: dict[int, float] = {}
        groups, least = rows_by_group(scores, group_ids), self.config.threshold
        with_some = 0
        for rows in groups:
            value_of = dict(zip(rows, values(scores, rows).tolist()))
            good = [i for i in rows if least is None or value_of[i] >= least]
            chosen = sorted(good, key=lambda i: -value_of[i])[: self.config.best]
            kept |= dict.fromkeys(chosen, 1.0)
            with_some += bool(chosen)
        shares = {"kept/completions": len(kept) / max(1, len(scores)), "kept/prompts": with_some / max(1, len(groups))}
        return Advantages(scatter_to_batch(len(scores), kept), shares)


class BatchNorm:
    """``A_i = (r_i - mean(group)) / (std(batch) + epsilon)`` (Liu et al. 2025, "Tricks or Traps", Lite PPO).

    An easy or hopeless prompt, whose few odd completions a group's own small std would blow up, keeps its size.
    """

    reads_tokens: ClassVar[bool] = False

    def __init__(self, config: BatchNormConfig) -> None:
        self.epsilon, self.floor = config.epsilon, config.relative_floor

    def estimate(self, rollouts: Sequence[Rollout], scores: Sequence[Score], group_ids: Sequence[int]) -> Advantages:
        groups = rows_by_group(scores, group_ids)
        std = spread(values(scores, [i for rows in groups for i in rows]), self.floor)
        advantage_of: dict[int, float] = {}
        for rows in groups:
            advantages = centred(values(scores, rows), self.floor)
            advantage_of |= zip(rows, advantages / (std + self.epsilon) if std else np.zeros_like(advantages))
        return Advantages(scatter_to_batch(len(scores), advantage_of), {"advantage/batch_std": std})


class ReinforcePP:
    """``A = (r - mean(batch)) / (std(batch) + epsilon)`` (REINFORCE++: Hu et al. 2025, eq. 5).

    Differs: each completion counts once in mean and std, where the authors' code counts it once per token.
    With ``baseline: group`` the group's mean is taken off first (REINFORCE++-baseline).
    """

    reads_tokens: ClassVar[bool] = False

    def __init__(self, config: ReinforcePPConfig) -> None:
        self.baseline, self.epsilon, self.floor = config.baseline, config.epsilon, config.relative_floor

    def estimate(self, rollouts: Sequence[Rollout], scores: Sequence[Score], group_ids: Sequence[int]) -> Advantages:
        groups = rows_by_group(scores, group_ids)
        rows = [i for group in groups for i in group]
        rewards = values(scores, rows)
        std = spread(rewards, self.floor)
        if self.baseline == "group":
            parts = [centred(values(scores, group), self.floor) for group in groups]
            rewards = np.concatenate([*parts, np.zeros(0)])
            std = float(rewards.std(ddof=1)) if std else 0.0
        advantages = (rewards - rewards.mean()) / (std + self.epsilon) if std else np.zeros_like(rewards)
        return Advantages(scatter_to_batch(len(scores), dict(zip(rows, advantages))), {"advantage/batch_std": std})


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
        advantage_of: dict[int, float] = {}
        for rows in rows_by_group(scores, group_ids):
            advantage_of |= zip(rows, self._group_sum(rollouts, scores, rows))
        std = spread(np.array(list(advantage_of.values())), self.floor)
        if self.order == "normalise_then_sum":
            advantage_of = {i: value / (std + self.epsilon) if std else 0.0 for i, value in advantage_of.items()}
        return Advantages(scatter_to_batch(len(scores), advantage_of), {"advantage/batch_std": std})

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
        settings = {"epsilon": self.epsilon, "relative_floor": self.floor}
        return np.sum([w * group_normalize(part, by_std=True, **settings) for w, part in varying], axis=0)

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
