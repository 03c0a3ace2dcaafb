"""The clipped value loss beside a policy's loss."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rlhf_core.losses import LossOutput, TokenBatch


class WithValues:
    r"""Adds ``coefficient * value loss`` per token to any token loss, reduced by the same denominator:
    :math:`\frac{1}{2} \max\{(V - R)^2, (V_{old} + clip(V - V_{old}, -c, c) - R)^2\}`, clipped as in OpenAI baselines
    (Huang et al. 2022, "The 37 implementation details of PPO", detail 9), not as in the paper."""

    def __init__(self, loss: Callable[[TokenBatch], LossOutput], coefficient: float, clip_range: float | None) -> None:
        self.loss, self.coefficient, self.clip_range = loss, coefficient, clip_range

    def __call__(self, batch: TokenBatch) -> LossOutput:
        """Return the sum, unreduced, and the mean value loss and share of clipped values."""
        out = self.loss(batch)
        values_BT, old_BT, returns_BT = batch.values_BT, batch.old_values_BT, batch.returns_BT
        assert values_BT is not None
        assert old_BT is not None
        assert returns_BT is not None
        error_BT = (values_BT - returns_BT) ** 2
        cut_BT = torch.zeros_like(batch.mask_BT)
        if self.clip_range is not None:
            near_BT = old_BT + (values_BT - old_BT).clamp(-self.clip_range, self.clip_range)
            other_BT = (near_BT - returns_BT) ** 2
            cut_BT = (other_BT > error_BT) & batch.mask_BT
            error_BT = torch.maximum(error_BT, other_BT)
        value_BT = 0.5 * error_BT
        count = batch.mask_BT.sum()
        metrics = {
            "value_loss": ((value_BT.detach() * batch.mask_BT).sum(), count),
            "value_clip_fraction": (cut_BT.sum(), count),
        }
        return LossOutput(out.loss + self.coefficient * value_BT, {**out.metrics, **metrics})
