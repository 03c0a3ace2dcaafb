r"""Losses that bound a token's change by something else than the clip of its ratio.

Each is checked against verl 0.9.1, value and gradient (``python -m scripts.check.verl_parity``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlhf_core.losses import LossOutput, TokenBatch
from rlhf_plugin_grpo.functional.surrogate import clipped_surrogate
from rlhf_plugin_grpo.loss import advantages, log_ratio, output, ratio

if TYPE_CHECKING:
    from rlhf_plugin_grpo.loss_config import (
        DppoConfig,
        DroConfig,
        GmpoConfig,
        GspoTokenConfig,
    )


class Dppo:
    r""":math:`-\min(\rho, M)\,A \log\pi_\theta`, without gradient through the ratio; 0 for a token that moved too far.

    (Divergence PPO, 2026, arXiv 2602.04879, its binary approximation.) How far: the divergence between two outcomes,
    this token or any other: total variation :math:`|\pi - \pi_{old}|`, or :math:`KL(\pi_{old} \| \pi)`. Only moves
    in the direction that the advantage asks for count.
    """

    def __init__(self, config: DppoConfig) -> None:
        self.divergence, self.ratio_max = config.divergence, config.ratio_max
        self.low, self.high = config.divergence_max, config.divergence_max_positive or config.divergence_max

    def __call__(self, batch: TokenBatch) -> LossOutput:
        A_BT, (free_BT, clamped_BT) = advantages(batch), ratio(batch)
        ratio_BT = free_BT.detach()
        assert batch.old_logprobs_BT is not None
        new_BT, old_BT = batch.logprobs_BT.detach(), batch.old_logprobs_BT
        moved_BT = new_BT.exp() - old_BT.exp()
        if self.divergence == "tv":
            far_BT = moved_BT.abs()
        else:
            rest_BT = torch.log((1 - old_BT.exp() + 1e-8) / (1 - new_BT.exp() + 1e-8))
            far_BT = old_BT.exp() * (old_BT - new_BT) + (1 - old_BT.exp()) * rest_BT
        up_BT, down_BT = (moved_BT > 0) & (far_BT > self.high), (moved_BT < 0) & (far_BT > self.low)
        cut_BT = torch.where(A_BT > 0, up_BT, down_BT)
        loss_BT = -A_BT * ratio_BT.clamp(max=self.ratio_max) * batch.logprobs_BT
        return output(torch.where(cut_BT, 0.0, loss_BT), batch, ratio_BT, clamped_BT, cut_BT)


class Gmpo:
    r""":math:`-A\,(\prod_t \mathrm{clip}(\rho_t))^{1/T}`: the geometric mean of ratios (Zhao et al. 2025, GMPO).

    The clip is of the logarithm and one-sided, as PPO's: up to ``clip_range`` above 0 where A > 0, below where A < 0.
    Token advantages are averaged over the completion.
    """

    def __init__(self, config: GmpoConfig) -> None:
        self.low, self.high = config.clip_range, config.clip_range_high or config.clip_range

    def __call__(self, batch: TokenBatch) -> LossOutput:
        A_BT, delta_BT, mask_BT = advantages(batch), log_ratio(batch), batch.mask_BT
        held_BT = delta_BT.clamp(-self.low, self.high)
        cut_BT = torch.where(A_BT > 0, delta_BT > held_BT, (A_BT < 0) & (delta_BT < held_BT))
        zeros_BT, count_B1 = torch.zeros_like(delta_BT), mask_BT.sum(-1, keepdim=True).clamp(min=1)
        log_B1 = torch.where(mask_BT, torch.where(cut_BT, held_BT, delta_BT), zeros_BT).sum(-1, keepdim=True) / count_B1
        A_B1 = torch.where(mask_BT, A_BT, zeros_BT).sum(-1, keepdim=True) / count_B1
        loss_BT = (-A_B1 * log_B1.exp()).expand_as(delta_BT)
        return output(loss_BT, batch, log_B1.exp().expand_as(delta_BT), torch.zeros_like(mask_BT), cut_BT)


class GspoToken:
    r"""GSPO's clipped ratio of the sequence, its gradient per token (Zheng et al. 2025, section 4.3, GSPO-token).

    :math:`s_t = \mathrm{sg}[s]\,\pi_\theta(y_t) / \mathrm{sg}[\pi_\theta(y_t)]`: the value is GSPO's, and so is the
    gradient where all tokens of a completion have one advantage; with advantages per token each has its own.
    """

    def __init__(self, config: GspoTokenConfig) -> None:
        self.low, self.high = config.clip_range, config.clip_range_high or config.clip_range

    def __call__(self, batch: TokenBatch) -> LossOutput:
        sequence_BT, clamped_BT = ratio(batch, "sequence")
        ratio_BT = sequence_BT.detach() * (batch.logprobs_BT - batch.logprobs_BT.detach()).exp()
        loss_BT, cut_BT = clipped_surrogate(ratio_BT, advantages(batch), self.low, self.high)
        return output(loss_BT, batch, ratio_BT, clamped_BT, cut_BT)


class Dro:
    r""":math:`-(A \log\pi_\theta - \frac{\beta}{2} \log^2\rho)` (Richemond et al. 2024, DRO, with A for r - V)."""

    def __init__(self, config: DroConfig) -> None:
        self.beta = config.beta

    def __call__(self, batch: TokenBatch) -> LossOutput:
        loss_BT = self.beta / 2 * log_ratio(batch).square() - advantages(batch) * batch.logprobs_BT
        return output(loss_BT, batch, *ratio(batch))
