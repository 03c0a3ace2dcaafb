"""Score responses and normalise within each group, from texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from rlhf_plugin_grpo.advantage import group_normalize


def compute_group_normalized_rewards(
    reward_fn: Callable[[str, str], Mapping[str, float]],
    rollout_responses: Sequence[str],
    repeated_ground_truths: Sequence[str],
    group_size: int,
    advantage_eps: float,
    normalized_by_std: bool | None = None,
    *,
    normalize_by_std: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
    """Score every response and normalise within its group; responses and their ground truths come group after group.

    ``reward_fn`` gives ``(response, ground truth) -> {"reward": ..., "format_reward": ..., "answer_reward": ...}``;
    without ``normalized_by_std`` (or ``normalize_by_std``: courses write both) the group's mean is subtracted, no more.
    Returns ``(advantages, raw_rewards, metadata)``: two float32 tensors of shape ``[rollout_batch_size]``; the metadata
    holds mean, std, min and max of the reward, the mean of each other entry of ``reward_fn``, and the share of groups
    whose rewards are all equal. Numbers of responses, ground truths and groups that do not fit are a
    :class:`ValueError`, both spellings or neither a :class:`TypeError`.
    """
    if (normalized_by_std is None) == (normalize_by_std is None):
        raise TypeError("give normalized_by_std or normalize_by_std")
    by_std = bool(normalized_by_std or normalize_by_std)
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
    advantages = np.concatenate([group_normalize(g, by_std=by_std, epsilon=advantage_eps) for g in groups])
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
