r"""The clipped surrogate (Schulman et al. 2017, PPO, eq. 7; GRPO: Shao et al. 2024, eq. 3), and others.

Losses of the form :math:`-w A \log\pi_\theta` have a weight w that no gradient goes through: where clipping the
surrogate drops a token's gradient altogether, they only bound its size.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, Self

import torch

from rlhf_core.losses import LossOutput, TokenBatch
from rlhf_plugin_grpo.functional.surrogate import (
    bounded_ratio,
    clipped_surrogate,
    compute_naive_policy_gradient_loss,
)

if TYPE_CHECKING:
    from rlhf_plugin_grpo.loss_config import CispoLossConfig, GrpoClipConfig, NoClipConfig, SapoConfig, VespoConfig


Level = Literal["token", "sequence", "product"]
"""What a ratio belongs to: a token; a sequence, as the geometric mean over its tokens (GSPO); or a sequence, as the
plain product over its tokens (RLOO as TRL has it), which is exact but grows and shrinks with the length."""


def log_ratio(batch: TokenBatch, level: Level = "token") -> torch.Tensor:
    r""":math:`\log\rho`, with gradient, ``[B, T]``; masked tokens take no part in a sequence's.

    token: :math:`\delta_t = \log\pi_\theta(y_t) - \log\pi_{old}(y_t)`. sequence: the mean of :math:`\delta` over the
    sequence's tokens. product: their sum.
    """
    assert batch.old_logprobs_BT is not None, "an importance ratio needs old logprobs"
    delta_BT = batch.logprobs_BT - batch.old_logprobs_BT
    if level == "token":
        return delta_BT
    masked_BT = torch.where(batch.mask_BT, delta_BT, torch.zeros_like(delta_BT))
    sum_B1 = masked_BT.sum(-1, keepdim=True)
    count_B1 = batch.mask_BT.sum(-1, keepdim=True).clamp(min=1)
    return (sum_B1 if level == "product" else sum_B1 / count_B1).expand_as(delta_BT)


def ratio(batch: TokenBatch, level: Level = "token") -> tuple[torch.Tensor, torch.Tensor]:
    """``(rho, held)`` of :func:`log_ratio`, see :func:`rlhf_plugin_grpo.functional.surrogate.bounded_ratio`."""
    return bounded_ratio(log_ratio(batch, level))


def advantages(batch: TokenBatch) -> torch.Tensor:
    assert batch.advantages_BT is not None, "a policy gradient needs advantages"
    return batch.advantages_BT


def output(
    loss_BT: torch.Tensor,
    batch: TokenBatch,
    ratio_BT: torch.Tensor,
    clamped_BT: torch.Tensor,
    clipped_BT: torch.Tensor | None = None,
) -> LossOutput:
    """The loss with its metrics; ``log_ratios_clamped`` is its own weight, so that none is no metric."""
    token_count, zeros_BT = batch.mask_BT.sum(), torch.zeros_like(ratio_BT)
    metrics: dict[str, tuple[torch.Tensor | float, torch.Tensor | float]] = {
        "importance_ratio": (torch.where(batch.mask_BT, ratio_BT.detach(), zeros_BT).sum(), token_count)
    }
    if clipped_BT is not None:
        metrics["clip_fraction"] = ((clipped_BT & batch.mask_BT).sum(), token_count)
    clamped = (clamped_BT & batch.mask_BT).sum()
    metrics["log_ratios_clamped"] = (clamped, clamped)
    return LossOutput(loss_BT, metrics)


class GrpoClip:
    r"""``-min(rho A, clip(rho, 1 - low, 1 + high) A)`` with ``rho = exp(logprob - old_logprob)``.

    KL and the mean over tokens are not here: the core adds the one and owns the other. With them the same surrogate
    is GRPO's, Dr. GRPO's, DAPO's, BNPO's, GSPO's, LUSPO's, RLOO's and PPO's.
    ``dual_clip`` c > 1 bounds the loss of a bad token by ``-c A`` (Ye et al. 2020, dual-clip PPO, eq. 5).
    """

    def __init__(self, low: float, high: float, level: Level = "token", dual_clip: float | None = None) -> None:
        self.low, self.high, self.dual_clip = low, high, dual_clip
        self.level: Level = level

    @classmethod
    def from_config(cls, config: GrpoClipConfig) -> Self:
        """The loss with these settings; without ``clip_range_high`` both sides are alike."""
        high = config.clip_range_high or config.clip_range
        return cls(config.clip_range, high, config.importance_level, config.dual_clip)

    def __call__(self, batch: TokenBatch) -> LossOutput:
        A_BT, (ratio_BT, clamped_BT) = advantages(batch), ratio(batch, self.level)
        loss_BT, cut_BT = clipped_surrogate(ratio_BT, A_BT, self.low, self.high)
        if self.dual_clip is not None:
            cut_BT = cut_BT | ((A_BT < 0) & (ratio_BT > self.dual_clip))
            loss_BT = torch.where(A_BT < 0, torch.minimum(loss_BT, -self.dual_clip * A_BT), loss_BT)
        return output(loss_BT, batch, ratio_BT, clamped_BT, cut_BT)


class NoClip:
    """``-rho A``: the importance-weighted policy gradient, trusted at any distance."""

    def __init__(self, config: NoClipConfig) -> None:
        self.level: Level = config.importance_level

    def __call__(self, batch: TokenBatch) -> LossOutput:
        ratio_BT, clamped_BT = ratio(batch, self.level)
        return output(-ratio_BT * advantages(batch), batch, ratio_BT, clamped_BT)


class Sapo:
    r""":math:`-\frac{4}{\tau}\sigma(\tau(\rho - 1))\,A`; the gradient's weight is 1 at ratio 1 and fades with distance.

    The temperature :math:`\tau` is larger where A <= 0: bad tokens' gradients spread over the whole vocabulary.
    """

    def __init__(self, config: SapoConfig) -> None:
        self.positive, self.negative = config.temperature_positive, config.temperature_negative
        self.level: Level = config.importance_level

    def __call__(self, batch: TokenBatch) -> LossOutput:
        A_BT, (ratio_BT, clamped_BT) = advantages(batch), ratio(batch, self.level)
        tau_BT = torch.where(A_BT > 0, self.positive, self.negative)
        gate_BT = torch.sigmoid(tau_BT * (ratio_BT - 1)) * 4 / tau_BT
        return output(-gate_BT * A_BT, batch, ratio_BT, clamped_BT)


class Reinforce:
    r""":math:`-A \log\pi_\theta` (Williams 1992): w = 1.

    Exact on policy only: from a rollout batch's second update on there is no importance ratio to correct it.
    """

    def __call__(self, batch: TokenBatch) -> LossOutput:
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
        A_BT, (free_BT, clamped_BT) = advantages(batch), ratio(batch, self.level)
        ratio_BT = free_BT.detach()
        loss_BT = -ratio_BT.clamp(max=self.ratio_max) * A_BT * batch.logprobs_BT
        return output(loss_BT, batch, ratio_BT, clamped_BT, ratio_BT > self.ratio_max)


class Vespo:
    r""":math:`w = e^\lambda \rho^k e^{-\lambda\rho}` with :math:`\rho` the product over the sequence.

    (VESPO, "Variational Sequence-Level Soft Policy Optimization", 2026, as TRL 1.16 has it.) w is 1 at ratio 1 and
    falls on both sides; k and lambda differ by the sign of A. Bounds of the logarithms are TRL's, too.
    ``positive`` is (k, lambda) where A >= 0, ``negative`` where A < 0.
    """

    def __init__(self, config: VespoConfig) -> None:
        self.positive, self.negative = config.positive, config.negative

    def __call__(self, batch: TokenBatch) -> LossOutput:
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
