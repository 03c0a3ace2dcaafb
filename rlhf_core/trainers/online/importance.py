"""Importance correction in the loop: a wrapper of the policy's loss, and its metrics."""

from __future__ import annotations

from typing import Literal

import torch

from rlhf_core.batches import LossOutput, TokenBatch
from rlhf_core.functional.importance import effective_sample_size, importance_weights
from rlhf_core.protocols import Loss
from rlhf_core.trainers.online.rollout_config import ImportanceSettings

SQUARE = "importance/mean_square"
"""Kept until :func:`with_sample_size` makes an effective sample size of it, which is no mean over micro-batches."""


class ImportanceCorrection:
    """Multiplies any token loss by the weights of :func:`rlhf_core.functional.importance.importance_weights`.

    Metrics over tokens, or over completions at level ``sequence``: ``importance/mean_ratio`` before bounds are
    applied, ``importance/clipped_fraction`` beyond them, and what the effective sample size is made of.

    Args:
        loss: the policy's own, without KL, entropy and value terms.
        settings: level and bounds.
        mode: what happens beyond the bounds.
    """

    def __init__(self, loss: Loss, settings: ImportanceSettings, mode: Literal["truncate", "mask"]) -> None:
        self.loss, self.settings = loss, settings
        self.mode: Literal["truncate", "mask"] = mode

    def __call__(self, batch: TokenBatch) -> LossOutput:
        """Return the weighted loss; ``batch`` must hold old and behaviour logprobs."""
        assert batch.old_logprobs_BT is not None, "an importance correction needs old logprobs"
        assert batch.behaviour_logprobs_BT is not None, "an importance correction needs the engine's logprobs"
        out, settings = self.loss(batch), self.settings
        weights, ratios = importance_weights(
            batch.old_logprobs_BT,
            batch.behaviour_logprobs_BT,
            batch.mask_BT,
            mode=self.mode,
            level=settings.level,
            cap=settings.cap,
            low=settings.low,
        )
        counted = batch.mask_BT if settings.level == "token" else batch.mask_BT.any(-1, keepdim=True)
        count = counted.sum()

        def total(values: torch.Tensor) -> torch.Tensor:
            return torch.where(counted, values, values.new_zeros(())).double().sum()

        metrics = {
            "importance/mean_ratio": (total(ratios), count),
            SQUARE: (total(ratios.double() ** 2), count),
            "importance/clipped_fraction": (total((weights != ratios).float()), count),
        }
        return LossOutput(out.loss * weights, {**out.metrics, **metrics})


def with_sample_size(metrics: dict[str, float]) -> dict[str, float]:
    """Replace the mean square by ``importance/ess``, the effective sample size as a share of the samples."""
    if SQUARE not in metrics:
        return metrics
    rest = {k: v for k, v in metrics.items() if k != SQUARE}
    return {**rest, "importance/ess": effective_sample_size(metrics["importance/mean_ratio"], metrics[SQUARE])}
