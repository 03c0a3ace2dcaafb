"""The policy's loss, corrected for tokens that another policy or another engine's arithmetic sampled."""

from __future__ import annotations

from typing import Literal

import torch

from rlhf_core.losses import LossOutput, TokenBatch
from rlhf_core.rl.settings import ImportanceSettings
from rlhf_core.rl.update import MEAN_SQUARE
from rlhf_core.training.functional import importance_weights


class ImportanceCorrection:
    """Multiplies the loss by the weights of :func:`rlhf_core.training.functional.importance_weights`.

    Metrics over tokens, or over completions at level ``sequence``: ``importance/mean_ratio`` before bounds are
    applied, ``importance/clipped_fraction`` beyond them, and what the effective sample size is made of.
    """

    def __init__(self, settings: ImportanceSettings, mode: Literal["truncate", "mask"]) -> None:
        self.settings = settings
        self.mode: Literal["truncate", "mask"] = mode

    def __call__(self, out: LossOutput, batch: TokenBatch) -> LossOutput:
        assert batch.old_logprobs_BT is not None, "an importance correction needs old logprobs"
        assert batch.behaviour_logprobs_BT is not None, "an importance correction needs the engine's logprobs"
        settings = self.settings
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
            MEAN_SQUARE: (total(ratios.double() ** 2), count),
            "importance/clipped_fraction": (total((weights != ratios).float()), count),
        }
        return LossOutput(out.loss * weights, {**out.metrics, **metrics})
