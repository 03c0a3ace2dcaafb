"""Terms that the loop adds to a policy's loss: KL to the reference policy, entropy bonus, importance correction.

Each wraps a loss and returns an unreduced one, so the core reduces all terms alike.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from rlhf_core.plugins.protocols import Loss
from rlhf_core.rl.importance import ImportanceSettings
from rlhf_core.training.functional.importance import LOG_LIMIT, effective_sample_size, importance_weights
from rlhf_core.training.functional.kl import kl_loss
from rlhf_core.types.batches import LossOutput, TokenBatch

MEAN_SQUARE = "importance/mean_square"
"""Kept until :func:`with_sample_size` makes an effective sample size of it, which is no mean over micro-batches."""


class KLTerm:
    """Adds ``coefficient * KL(policy || reference)`` per token to any token loss.

    Tokens of an older policy weigh the importance ratio to the policy that sampled them. From the second update of a
    rollout batch on that is ``batch.old_logprobs_BT``.

    Args:
        loss: the algorithm's.
        coefficient: weight of the KL.
        estimator: k1, k2 or k3: the term's value; its gradient is the KL's with any.
        stale: the rollouts may be older than the step, whose old logprobs are then not those of the policy that
            sampled: weigh against ``batch.behaviour_logprobs_BT``.
    """

    def __init__(self, loss: Loss, coefficient: float, estimator: str, stale: bool = False) -> None:
        self.loss, self.coefficient, self.estimator, self.stale = loss, coefficient, estimator, stale

    def __call__(self, batch: TokenBatch) -> LossOutput:
        """Return the loss with its KL term; ``batch.ref_logprobs_BT`` must be there."""
        out = self.loss(batch)
        assert batch.ref_logprobs_BT is not None, "KL in the loss needs reference logprobs"
        sampled_BT = batch.behaviour_logprobs_BT if self.stale else batch.old_logprobs_BT
        assert sampled_BT is not None or not self.stale, "stale rollouts come with the logprobs of what sampled them"
        term = kl_loss(batch.logprobs_BT, batch.ref_logprobs_BT, self.estimator, old_logprobs_BT=sampled_BT)
        return LossOutput(out.loss + self.coefficient * term, {**out.metrics, **self._held(batch, sampled_BT)})

    def _held(self, batch: TokenBatch, sampled_BT: torch.Tensor | None) -> dict[str, tuple[Any, Any]]:
        """Tokens at which an exponential was held at its limit; their own weight, so that none is no metric."""
        now_BT, ref_BT = batch.logprobs_BT.detach(), batch.ref_logprobs_BT
        assert ref_BT is not None
        far_BT = ref_BT - now_BT > LOG_LIMIT
        if sampled_BT is not None:
            far_BT = far_BT | ((now_BT - sampled_BT).abs() > LOG_LIMIT)
        count = (far_BT & batch.mask_BT).sum()
        return {"kl_clamped": (count, count)}


class EntropyBonus:
    """``loss_BT - coefficient * H_BT`` (Williams and Peng 1991): the gradient flows through the entropy.

    The bonus is reduced with the loss, as in every other term: a mean per token under ``token_mean``.
    """

    def __init__(self, loss: Loss, coefficient: float) -> None:
        self.loss, self.coefficient = loss, coefficient

    def __call__(self, batch: TokenBatch) -> LossOutput:
        """Return the loss with its bonus; ``batch.entropy_BT`` must be there, with gradient."""
        out = self.loss(batch)
        assert batch.entropy_BT is not None, "an entropy bonus needs entropies"
        return LossOutput(out.loss - self.coefficient * batch.entropy_BT, out.metrics)


class ImportanceCorrection:
    """Multiplies any token loss by the weights of :func:`rlhf_core.training.functional.importance.importance_weights`.

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
            MEAN_SQUARE: (total(ratios.double() ** 2), count),
            "importance/clipped_fraction": (total((weights != ratios).float()), count),
        }
        return LossOutput(out.loss * weights, {**out.metrics, **metrics})


def with_sample_size(metrics: dict[str, float]) -> dict[str, float]:
    """Replace the mean square by ``importance/ess``, the effective sample size as a share of the samples."""
    if MEAN_SQUARE not in metrics:
        return metrics
    rest = {k: v for k, v in metrics.items() if k != MEAN_SQUARE}
    return {**rest, "importance/ess": effective_sample_size(metrics["importance/mean_ratio"], metrics[MEAN_SQUARE])}
