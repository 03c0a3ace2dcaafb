"""The clipped surrogate (Schulman et al. 2017, eq. 7; GRPO: Shao et al. 2024, eq. 3)."""

from __future__ import annotations

import torch

from rlhf_core.api import LossOutput, TokenBatch


class GrpoClip:
    """``-min(rho A, clip(rho, 1 - low, 1 + high) A)`` with ``rho = exp(logprob - old_logprob)``.

    KL and the mean over tokens are not here: the core adds the one and owns the other.
    """

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def __call__(self, batch: TokenBatch) -> LossOutput:
        """Return ``loss_BT`` and the fraction of tokens where clipping took the gradient away."""
        assert batch.advantages_BT is not None
        assert batch.old_logprobs_BT is not None
        ratio_BT = (batch.logprobs_BT - batch.old_logprobs_BT).exp()
        clipped_BT = ratio_BT.clamp(1 - self.low, 1 + self.high)
        advantages_BT = batch.advantages_BT
        loss_BT = -torch.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT)
        cut_BT = (clipped_BT * advantages_BT < ratio_BT * advantages_BT) & batch.mask_BT
        count = batch.mask_BT.sum()
        return LossOutput(loss_BT, {
            "clip_fraction": (cut_BT.sum(), count),
            "importance_ratio": ((ratio_BT.detach() * batch.mask_BT).sum(), count),
        })
