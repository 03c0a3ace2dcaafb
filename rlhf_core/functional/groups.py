"""Group-relative advantages: a prompt's completions are their own baseline.

Suffix: ``_G`` completions of one prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float64]


def group_normalize(rewards_G: Floats, *, by_std: bool, epsilon: float = 1e-6, relative_floor: float = 0.0) -> Floats:
    r""":math:`(r_i - \bar r) / (\mathrm{std}(r) + \epsilon)` (Shao et al. 2024, section 4.1).

    The standard deviation is the sample's (n - 1), as in the reference implementations.

    Args:
        rewards_G: of one group, float64.
        by_std: False only subtracts the mean (Liu et al. 2025, Dr. GRPO).
        epsilon: added to the standard deviation.
        relative_floor: a group whose std is at most this share of its largest reward is constant and gets zeros:
            rounding must not become signal.

    Returns:
        Float64, ``[G]``; zeros for fewer than two rewards.
    """
    if len(rewards_G) < 2:
        return np.zeros_like(rewards_G)
    std = float(rewards_G.std(ddof=1))
    if std <= relative_floor * max(1e-8, float(np.abs(rewards_G).max())):
        return np.zeros_like(rewards_G)
    centred_G = rewards_G - rewards_G.mean()
    return centred_G / (std + epsilon) if by_std else centred_G


def compute_group_normalized_rewards(
    reward_fn: Callable[[str, str], Mapping[str, float]], rollout_responses: Sequence[str],
    repeated_ground_truths: Sequence[str], group_size: int, advantage_eps: float, normalized_by_std: bool,
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
        raise ValueError(f"{count} responses but {len(repeated_ground_truths)} ground truths; repeat each of them "
                         f"group_size times")
    if count == 0 or group_size < 1 or count % group_size:
        raise ValueError(f"{count} responses are not whole groups of {group_size}")
    rows = [reward_fn(r, t) for r, t in zip(rollout_responses, repeated_ground_truths)]
    rewards = np.array([float(row["reward"]) for row in rows], np.float64)
    groups = rewards.reshape(-1, group_size)
    advantages = np.concatenate([group_normalize(g, by_std=normalized_by_std, epsilon=advantage_eps) for g in groups])
    parts = {name: float(np.mean([float(row[name]) for row in rows])) for name in rows[0] if name != "reward"}
    metadata = {"reward_mean": float(rewards.mean()), "reward_std": float(rewards.std()),
                "reward_min": float(rewards.min()), "reward_max": float(rewards.max()), **parts,
                "constant_groups": float(np.mean(np.ptp(groups, axis=1) == 0))}
    return torch.tensor(advantages, dtype=torch.float32), torch.tensor(rewards, dtype=torch.float32), metadata
