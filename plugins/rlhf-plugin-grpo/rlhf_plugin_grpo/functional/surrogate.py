r"""Policy-gradient losses per token, unreduced: the naive one and the clipped surrogate.

Suffixes: ``_B`` sequences, ``_T`` tokens. Nothing here masks or averages.
"""

from __future__ import annotations

import math
from typing import Literal, cast, get_args

import torch

LossType = Literal["no_baseline", "reinforce_with_baseline", "grpo_clip", "grpo_no_clip"]


LOG_LIMIT = 20.0
"""Logarithms of ratios are held within this distance of 0, as verl does, so that no exponential overflows."""


def bounded_ratio(log_ratio: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``(ratio, held)`` of a log ratio; where it was held at :data:`LOG_LIMIT`, ``held`` is True, without gradient."""
    return log_ratio.clamp(-LOG_LIMIT, LOG_LIMIT).exp(), log_ratio.detach().abs() > LOG_LIMIT


def compute_naive_policy_gradient_loss(
    raw_rewards_or_advantages: torch.Tensor, policy_log_probs: torch.Tensor
) -> torch.Tensor:
    r""":math:`-A_t \log\pi_\theta(o_t)`, ``[B, T]`` (Williams 1992); A must be ``[B, 1]`` or ``[B, T]``."""
    return -_advantages(raw_rewards_or_advantages, policy_log_probs) * policy_log_probs


def clipped_surrogate(
    ratio_BT: torch.Tensor, advantages_BT: torch.Tensor, low: float, high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    r""":math:`-\min(\rho A, \mathrm{clip}(\rho, 1 - low, 1 + high) A)` (Schulman et al. 2017, eq. 7).

    Returns ``(loss_BT, clipped_BT)``; the second is True where clipping took the gradient away.
    """
    free_BT, bound_BT = ratio_BT * advantages_BT, ratio_BT.clamp(1 - low, 1 + high) * advantages_BT
    return -torch.minimum(free_BT, bound_BT), (bound_BT < free_BT).detach()


def compute_grpo_clip_loss(
    advantages: torch.Tensor, policy_log_probs: torch.Tensor, old_log_probs: torch.Tensor, cliprange: float
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The clipped surrogate of GRPO (Shao et al. 2024, eq. 3) without its KL term.

    Advantages are ``[B, 1]`` or ``[B, T]``, else a :class:`ValueError`; no gradient is taken through ``old_log_probs``,
    those of the policy that sampled. Returns ``(loss [B, T], {"clipped": bool [B, T], "ratio": [B, T]})``.
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
    """One of four losses per token, and its metadata (empty without a ratio): ``(loss [B, T], metadata)``.

    ``no_baseline`` needs ``raw_rewards`` ``[B, 1]``; ``reinforce_with_baseline`` ``advantages`` (``[B, 1]`` or
    ``[B, T]``); ``grpo_no_clip`` these and ``old_log_probs``; ``grpo_clip`` these and ``cliprange``. What is missing is
    an :class:`AssertionError`, an unknown loss type a :class:`ValueError`; ``GRPO-No-Clip`` is ``grpo_no_clip``.
    """
    loss_type = cast("LossType", loss_type.lower().replace("-", "_"))
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
