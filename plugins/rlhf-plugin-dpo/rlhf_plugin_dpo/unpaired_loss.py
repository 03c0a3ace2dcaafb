"""Losses of single responses that are desirable or not. Suffix: ``_B`` responses."""

from __future__ import annotations

import torch

from rlhf_core.losses import LossOutput, UnpairedBatch
from rlhf_plugin_dpo.unpaired_config import KtoLossConfig


class UnpairedLoss:
    """KTO and the unpaired APO-zero: a value function of the log ratio to the reference policy."""

    def __init__(self, config: KtoLossConfig) -> None:
        self.config = config

    def __call__(self, batch: UnpairedBatch) -> LossOutput:
        """Return ``loss_B`` and its metrics; rewards are ``beta h``."""
        config, desirable_B = self.config, batch.desirable_B
        beta = config.beta if batch.beta_scale_B is None else config.beta * batch.beta_scale_B
        h_B = batch.logprobs_B if batch.ref_logprobs_B is None else batch.logprobs_B - batch.ref_logprobs_B
        point_B = batch.kl_B if config.uses_kl and batch.kl_B is not None else torch.zeros_like(h_B)
        sign_B = torch.where(desirable_B, 1.0, -1.0)
        weight_B = torch.where(desirable_B, config.desirable_weight, config.undesirable_weight)
        loss_B = weight_B * (1 - torch.sigmoid(sign_B * beta * (h_B - point_B)))
        return LossOutput(loss_B, metrics(beta * h_B.detach(), batch))


def metrics(
    reward_B: torch.Tensor, batch: UnpairedBatch
) -> dict[str, tuple[torch.Tensor | float, torch.Tensor | float]]:
    """Rewards and logprobs of either kind, and the KL that was the reference point; (sum, weight) each."""
    rows: dict[str, tuple[torch.Tensor | float, torch.Tensor | float]] = {}
    for name, chosen_B in (("chosen", batch.desirable_B), ("rejected", ~batch.desirable_B)):
        count = chosen_B.sum()
        rows[f"rewards/{name}"] = ((reward_B * chosen_B).sum(), count)
        rows[f"logps/{name}"] = ((batch.logprobs_B.detach() * chosen_B).sum(), count)
    if batch.kl_B is not None:
        rows["kl"] = (batch.kl_B.sum(), float(len(reward_B)))
    return rows
