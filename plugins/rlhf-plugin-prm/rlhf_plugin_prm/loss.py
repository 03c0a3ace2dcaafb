"""Binary cross-entropy of labelled steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rlhf_core.losses import LossOutput, TokenBatch
from rlhf_plugin_prm.config import StepBceConfig


@dataclass(frozen=True, slots=True)
class StepBatch(TokenBatch):
    """Steps in the place of tokens: ``logprobs_BT[b, t]`` is the log-probability of step t's label."""

    labels_BT: torch.Tensor | None = None
    """Bool; True where the step is right."""


class StepBce:
    """``-w log p(label)``, ``p(right) = sigmoid(score)``; w is ``wrong_weight`` for wrong steps, 1 for right ones."""

    def __init__(self, wrong_weight: float = 1.0) -> None:
        self.wrong_weight = wrong_weight

    @classmethod
    def from_config(cls, config: StepBceConfig) -> StepBce:
        return cls(config.wrong_weight)

    def __call__(self, batch: TokenBatch) -> LossOutput:
        """Return ``loss_BT`` with the accuracy, and apart that on right and on wrong steps."""
        loss_BT, labels_BT = -batch.logprobs_BT, getattr(batch, "labels_BT", None)
        hit_BT, mask_BT = batch.logprobs_BT.detach() > -0.6931471805599453, batch.mask_BT
        rows = {"accuracy": mask_BT}
        if labels_BT is not None:
            loss_BT = torch.where(labels_BT, loss_BT, self.wrong_weight * loss_BT)
            rows |= {"accuracy_right": mask_BT & labels_BT, "accuracy_wrong": mask_BT & ~labels_BT}
        return LossOutput(loss_BT, {k: ((hit_BT & m).sum(), m.sum()) for k, m in rows.items()})
