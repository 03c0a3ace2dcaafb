"""Group-relative advantages: a prompt's completions are their own baseline.

Suffix: ``_G`` completions of one prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float64]


RELATIVE_FLOOR = 2.0**-19
"""A spread below this share of the largest score is rounding, by default: 16 roundings of float32 (2^-23 each), in
which most scores are computed."""


def rounding(scale: float) -> float:
    """What rounding may leave of float32 arithmetic on numbers up to ``scale``, whose true result is 0."""
    return RELATIVE_FLOOR * scale


def spread(values_N: Floats, relative_floor: float = RELATIVE_FLOOR, least: float = 0.0) -> float:
    """Standard deviation (n - 1), and 0 where it is not one: fewer than two values, or nothing but rounding.

    Args:
        values_N: any number of them, float64.
        relative_floor: a std up to this share of the largest value's size is rounding. Scores are often float32, whose
            residue divided by itself would be an advantage of full size, and by a tiny epsilon one of thousands.
        least: as is a std up to this, where the values are differences of larger numbers (see :func:`rounding`).
    """
    if len(values_N) < 2:
        return 0.0
    std = float(values_N.std(ddof=1))
    return std if std > max(least, relative_floor * float(np.abs(values_N).max())) else 0.0


def centred(values_N: Floats, relative_floor: float = RELATIVE_FLOOR, baseline: float | None = None) -> Floats:
    """Values less a baseline (their mean by default); exact zeros where they are constant (see :func:`spread`)."""
    if spread(values_N, relative_floor) == 0.0:
        return np.zeros_like(values_N)
    return values_N - (values_N.mean() if baseline is None else baseline)


def group_normalize(rewards_G: Floats, *, by_std: bool, epsilon: float = 1e-6, relative_floor: float = 0.0) -> Floats:
    r""":math:`(r_i - \bar r) / (\mathrm{std}(r) + \epsilon)` (Shao et al. 2024, section 4.1).

    The standard deviation is the sample's (n - 1), as in the reference implementations.

    Args:
        rewards_G: of one group, float64.
        by_std: False only subtracts the mean (Liu et al. 2025, Dr. GRPO).
        epsilon: added to the standard deviation.
        relative_floor: see :func:`spread`; a constant group gets zeros.

    Returns:
        Float64, ``[G]``; zeros for fewer than two rewards.
    """
    centred_G, std = centred(rewards_G, relative_floor), spread(rewards_G, relative_floor)
    return centred_G / (std + epsilon) if by_std and std else centred_G


def compute_group_normalized_rewards(
    reward_fn: Callable[[str, str], Mapping[str, float]],
    rollout_responses: Sequence[str],
    repeated_ground_truths: Sequence[str],
    group_size: int,
    advantage_eps: float,
    normalized_by_std: bool,
) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
    """Score every response and normalise within its group.

    Args:
        reward_fn: ``(response, ground truth) -> {"reward": ..., "format_reward": ..., "answer_reward": ...}``.
        rollout_responses: group after group.
        repeated_ground_truths: one per response.
        group_size: responses per prompt.
        advantage_eps: added to the standard deviation.
        normalized_by_std: False only subtracts the group's mean.

    Returns:
        ``(advantages, raw_rewards, metadata)``: two float32 tensors of shape ``[rollout_batch_size]``; the metadata
        holds mean, std, min and max of the reward, the mean of each other entry of ``reward_fn``, and the share of
        groups whose rewards are all equal.

    Raises:
        ValueError: the numbers of responses, ground truths and groups do not fit.
    """
    count = len(rollout_responses)
    if len(repeated_ground_truths) != count:
        raise ValueError(
            f"{count} responses but {len(repeated_ground_truths)} ground truths; repeat each of them group_size times"
        )
    if count == 0 or group_size < 1 or count % group_size:
        raise ValueError(f"{count} responses are not whole groups of {group_size}")
    rows = [reward_fn(r, t) for r, t in zip(rollout_responses, repeated_ground_truths)]
    rewards = np.array([float(row["reward"]) for row in rows], np.float64)
    groups = rewards.reshape(-1, group_size)
    advantages = np.concatenate([group_normalize(g, by_std=normalized_by_std, epsilon=advantage_eps) for g in groups])
    parts = {name: float(np.mean([float(row[name]) for row in rows])) for name in rows[0] if name != "reward"}
    metadata = {
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "reward_min": float(rewards.min()),
        "reward_max": float(rewards.max()),
        **parts,
        "constant_groups": float(np.mean(np.ptp(groups, axis=1) == 0)),
    }
    return torch.tensor(advantages, dtype=torch.float32), torch.tensor(rewards, dtype=torch.float32), metadata
