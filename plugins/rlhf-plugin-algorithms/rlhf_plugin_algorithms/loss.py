"""The sum of the terms that signals name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from rlhf_core.losses import LossOutput
from rlhf_plugin_algorithms.module import SignalBatch
from rlhf_plugin_algorithms.shares import TEACHER

Loss = Callable[[Any], LossOutput]


class SignalLoss:
    """Adds up the terms of a batch, each times its factors; the core reduces the sum.

    Args:
        policy_loss: the run's loss with the terms of the run's settings; of ``policy_gradient``.
        kl: a loss whose value is the KL to the reference policy at each token.
        value_loss: makes a critic's loss; None without a critic.
    """

    def __init__(self, policy_loss: Loss, kl: Loss, value_loss: Callable[[Loss], Loss] | None) -> None:
        self.policy_loss, self.kl = policy_loss, kl
        self.value_loss = None if value_loss is None else value_loss(_zeros)

    def __call__(self, batch: SignalBatch) -> LossOutput:
        """The sum, with the metrics of the losses and the mean of each further term."""
        loss_BT: torch.Tensor | None = None
        metrics: dict[str, Any] = {}
        for name, factors_BT in batch.factors.items():
            counted_BT = factors_BT != 0
            out = self._term(name, replace(batch, mask_BT=counted_BT))
            metrics |= out.metrics
            if name in ("cross_entropy", "kl", TEACHER):
                metrics[f"signal/{name}"] = (torch.where(counted_BT, out.loss.detach(), 0.0).sum(), counted_BT.sum())
            term_BT = torch.where(counted_BT, out.loss * factors_BT, torch.zeros_like(out.loss))
            loss_BT = term_BT if loss_BT is None else loss_BT + term_BT
        if self.value_loss is not None and "value" not in batch.factors:  # so that each backward pass has the critic
            assert batch.values_BT is not None
            assert loss_BT is not None
            loss_BT = loss_BT + 0.0 * batch.values_BT
        assert loss_BT is not None, "a sample without a term is left out before"
        return LossOutput(loss_BT, metrics)

    def _term(self, name: str, batch: SignalBatch) -> LossOutput:
        """One component's loss, unreduced."""
        if name == "policy_gradient":
            return self.policy_loss(batch)
        if name == "cross_entropy":
            return LossOutput(-batch.logprobs_BT)
        if name == "value":
            assert self.value_loss is not None, "the check refuses values without a critic"
            return self.value_loss(batch)
        if name == TEACHER:
            assert batch.divergence_BT is not None, "its samples have what the teacher takes"
            return LossOutput(batch.divergence_BT)
        return self.kl(batch)


def _zeros(batch: Any) -> LossOutput:
    return LossOutput(torch.zeros_like(batch.logprobs_BT))
