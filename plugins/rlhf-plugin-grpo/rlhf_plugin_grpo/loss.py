"""The clipped surrogate (Schulman et al. 2017, PPO, eq. 7; GRPO: Shao et al. 2024, eq. 3) and its unclipped form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch

from rlhf_core.losses import LossOutput, TokenBatch
from rlhf_plugin_grpo.functional.surrogate import clipped_surrogate
from rlhf_plugin_grpo.ratios import Level, advantages, output, ratio

if TYPE_CHECKING:
    from rlhf_plugin_grpo.loss_config import GrpoClipConfig, NoClipConfig


class GrpoClip:
    r"""``-min(rho A, clip(rho, 1 - low, 1 + high) A)`` with ``rho = exp(logprob - old_logprob)``.

    KL and the mean over tokens are not here: the core adds the one and owns the other. With them the same surrogate
    is GRPO's, Dr. GRPO's, DAPO's, BNPO's, GSPO's, LUSPO's, RLOO's and PPO's.

    Args:
        low: ratios below ``1 - low`` are clipped.
        high: ratios above ``1 + high`` are clipped.
        level: a ratio per token or per sequence.
        dual_clip: c > 1 bounds the loss of a bad token by ``-c A`` (Ye et al. 2020, dual-clip PPO, eq. 5).
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
        """Return ``loss_BT`` and the fraction of tokens where clipping took the gradient away."""
        A_BT, (ratio_BT, held_BT) = advantages(batch), ratio(batch, self.level)
        loss_BT, cut_BT = clipped_surrogate(ratio_BT, A_BT, self.low, self.high)
        if self.dual_clip is not None:
            cut_BT = cut_BT | ((A_BT < 0) & (ratio_BT > self.dual_clip))
            loss_BT = torch.where(A_BT < 0, torch.minimum(loss_BT, -self.dual_clip * A_BT), loss_BT)
        return output(loss_BT, batch, ratio_BT, held_BT, cut_BT)


class NoClip:
    """``-rho A``: the importance-weighted policy gradient, trusted at any distance."""

    def __init__(self, config: NoClipConfig) -> None:
        self.level: Level = config.importance_level

    def __call__(self, batch: TokenBatch) -> LossOutput:
        """Return ``loss_BT``."""
        ratio_BT, held_BT = ratio(batch, self.level)
        return output(-ratio_BT * advantages(batch), batch, ratio_BT, held_BT)
