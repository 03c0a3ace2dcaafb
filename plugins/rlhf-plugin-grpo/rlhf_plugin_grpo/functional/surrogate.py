r"""Policy-gradient losses per token, unreduced: the naive one and the clipped surrogate.

Suffixes: ``_B`` sequences, ``_T`` tokens. Nothing here masks or averages; see
:mod:`rlhf_plugin_grpo.functional.steps`.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch

from rlhf_core.losses import bounded_ratio

LossType = Literal["no_baseline", "reinforce_with_baseline", "grpo_clip", "grpo_no_clip"]


def compute_naive_policy_gradient_loss(
    raw_rewards_or_advantages: torch.Tensor, policy_log_probs: torch.Tensor
) -> torch.Tensor:
    r""":math:`-A_t \log\pi_\theta(o_t)` (Williams 1992).

    Args:
        raw_rewards_or_advantages: ``[B, 1]``, the same for every token, or ``[B, T]``.
        policy_log_probs: ``[B, T]``, with gradient.

    Returns:
        ``[B, T]``.

    Raises:
        ValueError: the advantages are not ``[B, 1]`` or ``[B, T]``.
    """
    return -_advantages(raw_rewards_or_advantages, policy_log_probs) * policy_log_probs


def clipped_surrogate(
    ratio_BT: torch.Tensor, advantages_BT: torch.Tensor, low: float, high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    r""":math:`-\min(\rho A, \mathrm{clip}(\rho, 1 - low, 1 + high) A)` (Schulman et al. 2017, eq. 7).

    Args:
        ratio_BT: :math:`\rho = \pi_\theta / \pi_{old}`, with gradient.
        advantages_BT: broadcast against it.
        low: distance of the lower bound from 1.
        high: of the upper one.

    Returns:
        ``(loss_BT, clipped_BT)``; the second is True where clipping took the gradient away.
    """
    free_BT, bound_BT = ratio_BT * advantages_BT, ratio_BT.clamp(1 - low, 1 + high) * advantages_BT
    return -torch.minimum(free_BT, bound_BT), (bound_BT < free_BT).detach()


def compute_grpo_clip_loss(
    advantages: torch.Tensor, policy_log_probs: torch.Tensor, old_log_probs: torch.Tensor, cliprange: float
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The clipped surrogate of GRPO (Shao et al. 2024, eq. 3) without its KL term.

    Args:
        advantages: ``[B, 1]`` or ``[B, T]``.
        policy_log_probs: ``[B, T]``, with gradient.
        old_log_probs: ``[B, T]`` under the policy that sampled; no gradient is taken through it.
        cliprange: epsilon, on both sides of 1.

    Returns:
        ``(loss [B, T], {"clipped": bool [B, T], "ratio": [B, T]})``.

    Raises:
        ValueError: the advantages are not ``[B, 1]`` or ``[B, T]``.
    """
    ratio_BT, _ = bounded_ratio(policy_log_probs - old_log_probs.detach())
    loss_BT, clipped_BT = clipped_surrogate(ratio_BT, _advantages(advantages, policy_log_probs), cliprange, cliprange)
    return loss_BT, {"clipped": clipped_BT, "ratio": ratio_BT.detach()}


def compute_policy_gradient_loss(
    policy_log_probs: torch.Tensor,
    loss_type: LossType,
    raw_rewards: torch.Tensor | None = None,
    advantages: torch.Tensor | None = None,
    old_log_probs: torch.Tensor | None = None,
    cliprange: float | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """One of four losses per token.

    Args:
        policy_log_probs: ``[B, T]``, with gradient.
        loss_type: ``no_baseline`` (needs ``raw_rewards``), ``reinforce_with_baseline`` (``advantages``),
            ``grpo_clip`` (``advantages``, ``old_log_probs`` and ``cliprange``) or ``grpo_no_clip``, the same without
            bounds (``advantages`` and ``old_log_probs``).
        raw_rewards: ``[B, 1]``.
        advantages: ``[B, 1]`` or ``[B, T]``.
        old_log_probs: ``[B, T]``.
        cliprange: epsilon.

    Returns:
        ``(loss [B, T], metadata)``; the metadata is empty without a ratio.

    Raises:
        AssertionError: something that the loss needs is missing.
        ValueError: an unknown loss type.
    """
    if loss_type == "no_baseline":
        assert raw_rewards is not None, "loss type no_baseline needs raw_rewards"
        return compute_naive_policy_gradient_loss(raw_rewards, policy_log_probs), {}
    if loss_type == "reinforce_with_baseline":
        assert advantages is not None, "loss type reinforce_with_baseline needs advantages"
        return compute_naive_policy_gradient_loss(advantages, policy_log_probs), {}
    if loss_type in ("grpo_clip", "grpo_no_clip"):
        assert advantages is not None, f"loss type {loss_type} needs advantages"
        assert old_log_probs is not None, f"loss type {loss_type} needs old_log_probs"
        if loss_type == "grpo_no_clip":
            cliprange = math.inf
        assert cliprange is not None, "loss type grpo_clip needs cliprange"
        return compute_grpo_clip_loss(advantages, policy_log_probs, old_log_probs, cliprange)
    raise ValueError(f"unknown loss type {loss_type!r}; use {', '.join(get_args(LossType))}")


def _advantages(values: torch.Tensor, log_probs_BT: torch.Tensor) -> torch.Tensor:
    """``[B]`` would broadcast over the wrong dimension, silently if B equals T."""
    if values.ndim != 2 or values.shape not in ((len(log_probs_BT), 1), log_probs_BT.shape):
        raise ValueError(
            f"advantages of shape {tuple(values.shape)} for log-probabilities of shape "
            f"{tuple(log_probs_BT.shape)}; pass one per sequence as [B, 1] (x.unsqueeze(-1)) or [B, T]"
        )
    return values
