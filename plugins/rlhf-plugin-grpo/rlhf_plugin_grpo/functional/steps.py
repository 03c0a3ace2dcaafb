"""One micro-batch: loss, mask, division, backward. For loops of your own; the trainers' denominators are global."""

from __future__ import annotations

import torch

from rlhf_plugin_grpo.functional.masked import masked_sum, mean_or_zero
from rlhf_plugin_grpo.functional.surrogate import LossType, compute_policy_gradient_loss


def grpo_microbatch_train_step(
    policy_log_probs: torch.Tensor,
    response_mask: torch.Tensor,
    gradient_accumulation_steps: int,
    loss_type: LossType,
    raw_rewards: torch.Tensor | None = None,
    advantages: torch.Tensor | None = None,
    old_log_probs: torch.Tensor | None = None,
    cliprange: float | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Mean over each response's tokens, then over the micro-batch, divided by the number of micro-batches; backward.

    A response without tokens counts as 0. It is the trainers' ``reduction: sequence_mean`` when every micro-batch has
    the same number of sequences.

    The loss is :func:`rlhf_plugin_grpo.functional.surrogate.compute_policy_gradient_loss`'s; the mask is ``[B, T]``.
    Returns ``(loss, metadata)``: the scalar that was differentiated, detached, and the loss's metadata with, for
    ``grpo_clip``, ``clip_fraction`` over response tokens.
    """
    loss_BT, metadata = compute_policy_gradient_loss(
        policy_log_probs, loss_type, raw_rewards, advantages, old_log_probs, cliprange
    )
    share = len(loss_BT) * _positive(gradient_accumulation_steps)
    loss = mean_or_zero(loss_BT, response_mask, dim=-1).sum() / share
    loss.backward()
    if "clipped" in metadata:
        metadata["clip_fraction"] = mean_or_zero(metadata["clipped"].float(), response_mask)
    return loss.detach(), metadata


def sft_microbatch_train_step(
    policy_log_probs: torch.Tensor,
    response_mask: torch.Tensor,
    gradient_accumulation_steps: int,
    constant_normalizer: float = 1.0,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Negative log-likelihood summed over each response and divided by a constant, mean over sequences; backward.

    Log-probabilities and mask are ``[B, T]``. Returns ``(loss, metadata)``: the scalar that was differentiated,
    detached, and ``token_loss``, the mean over response tokens in nats.
    """
    share = len(policy_log_probs) * _positive(gradient_accumulation_steps) * constant_normalizer
    loss = masked_sum(-policy_log_probs, response_mask) / share
    loss.backward()
    return loss.detach(), {"token_loss": mean_or_zero(-policy_log_probs.detach(), response_mask)}


def _positive(steps: int) -> int:
    if steps < 1:
        raise ValueError(f"gradient_accumulation_steps must be at least 1, got {steps}")
    return steps
