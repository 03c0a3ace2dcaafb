"""The Bradley-Terry loss."""

from __future__ import annotations

import torch
from torch.nn.functional import logsigmoid

from rlhf_core.losses import LossOutput, PairBatch
from rlhf_plugin_reward.config import BradleyTerryLossConfig


class BradleyTerry:
    """``-(1 - s) log sigmoid(m) - s log sigmoid(-m) + c (chosen + rejected)^2``, ``m = chosen - rejected - margin``."""

    def __init__(self, label_smoothing: float = 0.0, centring: float = 0.0) -> None:
        self.smoothing, self.centring = label_smoothing, centring

    @classmethod
    def from_config(cls, config: BradleyTerryLossConfig) -> BradleyTerry:
        return cls(config.label_smoothing, config.centring)

    def __call__(self, batch: PairBatch) -> LossOutput:
        """Return ``loss_B`` with accuracy and margin."""
        gap_B = batch.chosen_B - batch.rejected_B
        margin_B = gap_B if batch.margin_B is None else gap_B - batch.margin_B
        loss_B = -(1 - self.smoothing) * logsigmoid(margin_B) - self.smoothing * logsigmoid(-margin_B)
        loss_B = loss_B + self.centring * (batch.chosen_B + batch.rejected_B) ** 2
        weight_B = torch.ones_like(gap_B) if batch.weights_B is None else batch.weights_B
        total = weight_B.sum()
        return LossOutput(
            loss_B,
            {"accuracy": (((gap_B > 0) * weight_B).sum(), total), "margin": ((gap_B.detach() * weight_B).sum(), total)},
        )
