"""The policy's loss, corrected for tokens that another policy or another engine's arithmetic sampled."""

from __future__ import annotations

from typing import Literal

import torch

from rlhf_core.losses import LossOutput, TokenBatch
from rlhf_core.rl.settings import ImportanceSettings
from rlhf_core.rl.update import MEAN_SQUARE
from rlhf_core.training.functional import bounded_ratio


def importance_weights(
    old_logprobs_BT: torch.Tensor,
    behaviour_logprobs_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    mode: Literal["truncate", "mask"] = "truncate",
    level: Literal["token", "sequence"] = "token",
    cap: float = 2.0,
    low: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""Weights for the loss of tokens drawn from :math:`\mu` when the update starts from :math:`\pi_{old}`.

    .. math:: r_t = \pi_{old}(o_t) / \mu(o_t), \qquad
        w_t = \min(r_t, cap) \;\text{(truncate)} \quad\text{or}\quad r_t\,[low \le r_t \le cap] \;\text{(mask)}

    Truncation is TIS (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"),
    masking MIS (Liu et al. 2025, "When speed kills stability"; with a lower bound IcePop). At level ``sequence`` r is
    the product over the sequence's tokens: unbiased before truncation, and far more varied.

    The mask is True where the policy chose the token; other places may hold anything finite. Returns
    ``(weights, ratios)``, both without gradient, ``[B, T]``, or ``[B, 1]`` for sequences.
    """
    gap_BT = (old_logprobs_BT - behaviour_logprobs_BT).detach().float()
    if level == "sequence":
        gap_BT = torch.where(mask_BT, gap_BT, gap_BT.new_zeros(())).sum(-1, keepdim=True)
    ratios, _ = bounded_ratio(gap_BT)
    if mode == "truncate":
        return ratios.clamp(min=low, max=cap), ratios
    inside = (ratios <= cap) & (ratios >= (0.0 if low is None else low))
    return torch.where(inside, ratios, ratios.new_zeros(())), ratios


class ImportanceCorrection:
    """Multiplies the loss by the weights of :func:`importance_weights`.

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
