r"""Losses of the form :math:`-w A \log\pi_\theta` with a weight w that no gradient goes through.

Where clipping the surrogate drops a token's gradient altogether, these only bound its size.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from rlhf_core.losses import LossOutput, TokenBatch
from rlhf_plugin_grpo.functional.surrogate import compute_naive_policy_gradient_loss
from rlhf_plugin_grpo.ratios import Level, advantages, log_ratio, output, ratio

if TYPE_CHECKING:
    from rlhf_plugin_grpo.loss_config import CispoLossConfig, VespoConfig


class Reinforce:
    r""":math:`-A \log\pi_\theta` (Williams 1992): w = 1.

    Exact on policy only: from a rollout batch's second update on there is no importance ratio to correct it.
    """

    def __call__(self, batch: TokenBatch) -> LossOutput:
        """Return ``loss_BT``."""
        return LossOutput(compute_naive_policy_gradient_loss(advantages(batch), batch.logprobs_BT))


class Cispo:
    r""":math:`w = \min(\rho, M)` (MiniMax 2025, MiniMax-M1, eqs. 4-5).

    The paper clips to ``[1 - eps_low, 1 + eps_high]`` and sets no lower bound in effect; so does this, with
    ``M = 1 + eps_high``.
    """

    def __init__(self, config: CispoLossConfig) -> None:
        self.ratio_max = config.ratio_max
        self.level: Level = config.importance_level

    def __call__(self, batch: TokenBatch) -> LossOutput:
        """Return ``loss_BT``; ``clip_fraction`` counts tokens whose weight was bounded."""
        A_BT, (free_BT, held_BT) = advantages(batch), ratio(batch, self.level)
        ratio_BT = free_BT.detach()
        loss_BT = -ratio_BT.clamp(max=self.ratio_max) * A_BT * batch.logprobs_BT
        return output(loss_BT, batch, ratio_BT, held_BT, ratio_BT > self.ratio_max)


class Vespo:
    r""":math:`w = e^\lambda \rho^k e^{-\lambda\rho}` with :math:`\rho` the product over the sequence.

    (VESPO, "Variational Sequence-Level Soft Policy Optimization", 2026, as TRL 1.16 has it.) w is 1 at ratio 1 and
    falls on both sides; k and lambda differ by the sign of A. Bounds of the logarithms are TRL's, too.
    ``positive`` is (k, lambda) where A >= 0, ``negative`` where A < 0.
    """

    def __init__(self, config: VespoConfig) -> None:
        self.positive, self.negative = config.positive, config.negative

    def __call__(self, batch: TokenBatch) -> LossOutput:
        """Return ``loss_BT``; ``importance_ratio`` is the mean weight."""
        A_BT = advantages(batch)
        with torch.no_grad():
            free_BT = log_ratio(batch)
            delta_BT = free_BT.clamp(-20, 20)
            sum_B1 = torch.where(batch.mask_BT, delta_BT, torch.zeros_like(delta_BT)).sum(-1, keepdim=True)
            log_BT = sum_B1.clamp(math.log(1e-8), 20).expand_as(delta_BT)
            (k_up, up), (k_down, down) = self.positive, self.negative
            k_BT = torch.where(A_BT >= 0, k_up, k_down)
            lambda_BT = torch.where(A_BT >= 0, up, down)
            weight_BT = (lambda_BT + k_BT * log_BT - lambda_BT * log_BT.exp()).exp()
        return output(-weight_BT * A_BT * batch.logprobs_BT, batch, weight_BT, delta_BT != free_BT)
