"""The soft gate that takes the clip's place (Gao et al. 2025, "Soft Adaptive Policy Optimization")."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlhf_core.losses import LossOutput, TokenBatch
from rlhf_plugin_grpo.ratios import Level, advantages, output, ratio

if TYPE_CHECKING:
    from rlhf_plugin_grpo.loss_config import SapoConfig


class Sapo:
    r""":math:`-\frac{4}{\tau}\sigma(\tau(\rho - 1))\,A`; the gradient's weight is 1 at ratio 1 and fades with distance.

    The temperature :math:`\tau` is larger where A <= 0: bad tokens' gradients spread over the whole vocabulary.
    """

    def __init__(self, config: SapoConfig) -> None:
        self.positive, self.negative = config.temperature_positive, config.temperature_negative
        self.level: Level = config.importance_level

    def __call__(self, batch: TokenBatch) -> LossOutput:
        """Return ``loss_BT``."""
        A_BT, (ratio_BT, held_BT) = advantages(batch), ratio(batch, self.level)
        tau_BT = torch.where(A_BT > 0, self.positive, self.negative)
        gate_BT = torch.sigmoid(tau_BT * (ratio_BT - 1)) * 4 / tau_BT
        return output(-gate_BT * A_BT, batch, ratio_BT, held_BT)
