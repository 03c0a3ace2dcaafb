"""What the loop adds to a policy's loss: importance correction, KL to the reference policy, entropy bonus."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from rlhf_core.rl.importance import ImportanceSettings
from rlhf_core.training.functional.importance import LOG_LIMIT, effective_sample_size, importance_weights
from rlhf_core.training.functional.kl import kl_loss
from rlhf_core.types.batches import LossOutput, TokenBatch

MEAN_SQUARE = "importance/mean_square"
"""Kept until :func:`with_sample_size` makes an effective sample size of it, which is not a mean over micro-batches."""
Metrics = dict[str, tuple[Any, Any]]


@dataclass(frozen=True)
class PolicyTerms:
    r"""``w * loss_BT + beta * KL_BT - c * H_BT``; a term whose coefficient is 0 is left out.

    The sum is not reduced: the core reduces all terms alike.

    Example:
        CheckedLoss(loss, terms=[PolicyTerms(kl_coefficient=0.04)])
    """

    kl_coefficient: float = 0.0
    """Weight of the KL(policy || reference) per token."""
    kl_estimator: str = "k3"
    """k1, k2 or k3: the term's value; its gradient is the KL's with any."""
    stale: bool = False
    """The rollouts may be older than the step, whose old logprobs are then not those of the policy that sampled: the
    KL weighs against ``batch.behaviour_logprobs_BT``."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus (Williams and Peng 1991); the gradient flows through the entropy."""
    correction: Literal["off", "truncate", "mask"] = "off"
    """What the importance correction does beyond its bounds."""
    importance: ImportanceSettings = field(default_factory=ImportanceSettings)
    """Its level and bounds."""

    def __call__(self, out: LossOutput, batch: TokenBatch) -> LossOutput:
        """The loss's answer with the terms; the logprobs that they compare must be in the batch."""
        loss_BT, metrics = out.loss, dict(out.metrics)
        if self.correction != "off":
            weights, correction_metrics = correct(batch, self.importance, self.correction)
            loss_BT, metrics = loss_BT * weights, metrics | correction_metrics
        if self.kl_coefficient:
            assert batch.ref_logprobs_BT is not None, "KL in the loss needs reference logprobs"
            sampled_BT = batch.behaviour_logprobs_BT if self.stale else batch.old_logprobs_BT
            assert sampled_BT is not None or not self.stale, "stale rollouts come with the engine's logprobs"
            kl_BT = kl_loss(batch.logprobs_BT, batch.ref_logprobs_BT, self.kl_estimator, old_logprobs_BT=sampled_BT)
            loss_BT = loss_BT + self.kl_coefficient * kl_BT
            metrics |= count_clamped(batch.logprobs_BT.detach(), batch.ref_logprobs_BT, sampled_BT, batch.mask_BT)
        if self.entropy_coefficient:
            assert batch.entropy_BT is not None, "an entropy bonus needs entropies"
            loss_BT = loss_BT - self.entropy_coefficient * batch.entropy_BT
        return LossOutput(loss_BT, metrics)


def count_clamped(
    logprobs_BT: torch.Tensor, ref_BT: torch.Tensor, sampled_BT: torch.Tensor | None, mask_BT: torch.Tensor
) -> Metrics:
    """Tokens at which an exponential of the KL was held at its limit; their own weight, so that none is no metric."""
    far_BT = ref_BT - logprobs_BT > LOG_LIMIT
    if sampled_BT is not None:
        far_BT = far_BT | ((logprobs_BT - sampled_BT).abs() > LOG_LIMIT)
    count = (far_BT & mask_BT).sum()
    return {"kl_clamped": (count, count)}


def correct(
    batch: TokenBatch, settings: ImportanceSettings, mode: Literal["truncate", "mask"]
) -> tuple[torch.Tensor, Metrics]:
    """The weights of :func:`rlhf_core.training.functional.importance.importance_weights`, and metrics of them.

    Metrics over tokens, or over completions at level ``sequence``: ``importance/mean_ratio`` before bounds are
    applied, ``importance/clipped_fraction`` beyond them, and what the effective sample size is made of.
    """
    assert batch.old_logprobs_BT is not None, "an importance correction needs old logprobs"
    assert batch.behaviour_logprobs_BT is not None, "an importance correction needs the engine's logprobs"
    weights, ratios = importance_weights(
        batch.old_logprobs_BT,
        batch.behaviour_logprobs_BT,
        batch.mask_BT,
        mode=mode,
        level=settings.level,
        cap=settings.cap,
        low=settings.low,
    )
    counted = batch.mask_BT if settings.level == "token" else batch.mask_BT.any(-1, keepdim=True)
    count = counted.sum()

    def total(values: torch.Tensor) -> torch.Tensor:
        return torch.where(counted, values, values.new_zeros(())).double().sum()

    return weights, {
        "importance/mean_ratio": (total(ratios), count),
        MEAN_SQUARE: (total(ratios.double() ** 2), count),
        "importance/clipped_fraction": (total((weights != ratios).float()), count),
    }


def with_sample_size(metrics: dict[str, float]) -> dict[str, float]:
    """Replace the mean square by ``importance/ess``, the effective sample size as a share of the samples."""
    if MEAN_SQUARE not in metrics:
        return metrics
    rest = {k: v for k, v in metrics.items() if k != MEAN_SQUARE}
    return {**rest, "importance/ess": effective_sample_size(metrics["importance/mean_ratio"], metrics[MEAN_SQUARE])}
