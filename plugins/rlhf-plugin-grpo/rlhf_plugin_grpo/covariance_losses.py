r"""Losses that hold back the few tokens which take most of the policy's entropy (Cui et al. 2025, arXiv 2505.22617).

Those are the tokens of a high :math:`(\log\pi_\theta - \overline{\log\pi_\theta})(A - \bar A)`, means over the
micro-batch. Value and gradient are verl 0.9.1's (``python -m scripts.check.verl_parity``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlhf_core.losses import LossOutput, TokenBatch
from rlhf_plugin_grpo.functional.surrogate import clipped_surrogate
from rlhf_plugin_grpo.loss import advantages, log_ratio, output, ratio

if TYPE_CHECKING:
    from rlhf_plugin_grpo.loss_config import ClipCovConfig, KlCovConfig


def covariance(batch: TokenBatch) -> torch.Tensor:
    """Each token's part in the covariance, without gradient, ``[B, T]``; ``-inf`` where masked."""
    mask_BT, count = batch.mask_BT, batch.mask_BT.sum().clamp(min=1)
    parts = [torch.where(mask_BT, v, torch.zeros_like(v)).detach() for v in (batch.logprobs_BT, advantages(batch))]
    logprob_BT, A_BT = (v - v.sum() / count for v in parts)
    return torch.where(mask_BT, logprob_BT * A_BT, -torch.inf)


class ClipCov:
    """PPO's clipped surrogate, 0 at some tokens whose covariance is between two bounds and that the clip left alone.

    They are drawn with torch's generator of the CPU, whose state a checkpoint holds.
    """

    def __init__(self, config: ClipCovConfig) -> None:
        self.clip, self.share = config.clip_range, config.share
        self.low, self.high = config.covariance_min, config.covariance_max

    def __call__(self, batch: TokenBatch) -> LossOutput:
        ratio_BT, clamped_BT = ratio(batch)
        loss_BT, clipped_BT = clipped_surrogate(ratio_BT, advantages(batch), self.clip, self.clip)
        cov_BT = covariance(batch)
        between = ((cov_BT > self.low) & (cov_BT < self.high) & ~clipped_BT).flatten().nonzero()[:, 0]
        count = max(1, int(self.share * int(batch.mask_BT.sum())))
        chosen = between[torch.randperm(len(between))[:count].to(between.device)]
        left_out_BT = torch.zeros_like(batch.mask_BT).flatten().index_fill(0, chosen, True).view_as(batch.mask_BT)
        out = output(torch.where(left_out_BT, 0.0, loss_BT), batch, ratio_BT, clamped_BT, clipped_BT)
        return LossOutput(out.loss, {**out.metrics, "left_out": (left_out_BT.sum(), batch.mask_BT.sum())})


class KlCov:
    """The unclipped surrogate, with a penalty of the distance from the policy that sampled at some tokens."""

    def __init__(self, config: KlCovConfig) -> None:
        self.share, self.beta = config.share, config.beta

    def __call__(self, batch: TokenBatch) -> LossOutput:
        ratio_BT, clamped_BT = ratio(batch)
        cov_BT, tokens = covariance(batch), int(batch.mask_BT.sum())
        count = min(tokens, max(1, int(self.share * tokens)))
        held_BT = torch.zeros_like(batch.mask_BT).flatten()
        held_BT = held_BT.index_fill(0, cov_BT.flatten().topk(count).indices, True).view_as(batch.mask_BT)
        penalty_BT = self.beta * log_ratio(batch).abs()
        loss_BT = -ratio_BT * advantages(batch) + torch.where(held_BT, penalty_BT, 0.0)
        out = output(loss_BT, batch, ratio_BT, clamped_BT)
        return LossOutput(out.loss, {**out.metrics, "penalised": (held_BT.sum(), batch.mask_BT.sum())})
