"""A configured pair loss: which scores go into which formula, and what is reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from rlhf_core.losses import LossOutput, PairBatch
from rlhf_plugin_dpo import formulas as f
from rlhf_plugin_dpo import loss_config as c


class PairLoss:
    """Any loss of :mod:`rlhf_plugin_dpo.loss_config`."""

    def __init__(self, config: c.PairLossConfig) -> None:
        self.config = config

    def __call__(self, batch: PairBatch) -> LossOutput:
        """Return ``loss_B`` and its metrics from summed logprobs; without a reference those count as 0. Rewards are
        ``beta h``, or ``beta`` times what a loss without reference compares."""
        w_B, l_B = self._compared(batch)
        beta: f.Beta = self.config.beta if batch.beta_scale_B is None else self.config.beta * batch.beta_scale_B
        loss_B = self._loss(w_B, l_B, beta, batch)
        return LossOutput(loss_B, metrics(batch, w_B.detach(), l_B.detach(), beta))

    def _compared(self, batch: PairBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Log ratios to the reference; (mean) logprobs for a loss that ignores it."""
        if isinstance(self.config, (c.SimpoConfig, c.OrpoConfig)):
            return (
                batch.chosen_B / lengths(batch.chosen_lengths_B),
                batch.rejected_B / lengths(batch.rejected_lengths_B),
            )
        if self.config.reference == "unused" or batch.ref_chosen_B is None or batch.ref_rejected_B is None:
            return batch.chosen_B, batch.rejected_B
        return batch.chosen_B - batch.ref_chosen_B, batch.rejected_B - batch.ref_rejected_B

    def _loss(self, w_B: torch.Tensor, l_B: torch.Tensor, beta: f.Beta, batch: PairBatch) -> torch.Tensor:
        config = self.config
        if isinstance(config, c.DifferenceConfig):
            return of_difference(config, difference(config, w_B, l_B, batch), beta)
        match config:
            case c.AotConfig() | c.CpoConfig():
                return f.smoothed(beta * (w_B - l_B), config.label_smoothing)
            case c.SimpoConfig():
                return f.smoothed(beta * (w_B - l_B) - config.gamma, config.label_smoothing)
            case _:
                return FORMULAS[type(config)](w_B, l_B, beta)


TIE = 1e-3
"""Log ratios closer than this (nats of a whole response) are equal: rounding."""

Formula = Callable[[torch.Tensor, torch.Tensor, f.Beta], torch.Tensor]
FORMULAS: Mapping[type[c.PairLossConfig], Formula] = {
    c.NcaConfig: f.nca,
    c.BcoConfig: f.bco,
    c.SppoConfig: f.sppo,
    c.ApoZeroConfig: f.apo_zero,
    c.ApoDownConfig: f.apo_down,
    c.OrpoConfig: f.orpo,
}
"""Losses that have no setting but beta."""


def lengths(lengths_B: torch.Tensor | None) -> torch.Tensor:
    assert lengths_B is not None, "a length-normalised loss needs the lengths of the responses"
    return lengths_B.clamp(min=1)


def difference(config: c.DifferenceConfig, w_B: torch.Tensor, l_B: torch.Tensor, batch: PairBatch) -> torch.Tensor:
    chosen_B = f.score(w_B, config.divergence, config.divergence_alpha)
    rejected_B = f.score(l_B, config.divergence, config.divergence_alpha)
    if config.length_normalised:
        return chosen_B / lengths(batch.chosen_lengths_B) - rejected_B / lengths(batch.rejected_lengths_B)
    return chosen_B - rejected_B


def of_difference(config: c.DifferenceConfig, d_B: torch.Tensor, beta: f.Beta) -> torch.Tensor:
    match config:
        case c.SigmoidConfig():
            return f.smoothed(beta * d_B, config.label_smoothing)
        case c.HingeConfig():
            return f.hinge(d_B, beta)
        case c.IpoConfig():
            return f.ipo(d_B, beta)
        case c.RobustConfig():
            return f.robust(d_B, beta, config.label_smoothing)
        case c.ExoConfig():
            return f.exo(d_B, beta, config.label_smoothing)
        case c.DiscoPopConfig():
            return f.discopop(d_B, beta, config.tau)
        case _:
            raise TypeError(f"no formula for {type(config).__name__}")


def metrics(
    batch: PairBatch, w_B: torch.Tensor, l_B: torch.Tensor, beta: f.Beta
) -> dict[str, tuple[torch.Tensor | float, torch.Tensor | float]]:
    """Rewards of both sides, their margin (of the pairs, also for AOT), how often it is positive (ties count half, see
    :data:`TIE`), and logprobs; (sum, pairs) each."""
    count = float(len(w_B))
    chosen_B, rejected_B, gap_B = beta * w_B, beta * l_B, w_B - l_B
    margin_B = chosen_B - rejected_B
    right_B = batch.right_B
    if right_B is None:
        right_B = torch.where(gap_B.abs() < TIE, 0.5, (gap_B > 0).double())
    return {
        "rewards/chosen": (chosen_B.sum(), count),
        "rewards/rejected": (rejected_B.sum(), count),
        "margin": (margin_B.sum(), count),
        "accuracy": (right_B.sum(), count),
        "logps/chosen": (batch.chosen_B.detach().sum(), count),
        "logps/rejected": (batch.rejected_B.detach().sum(), count),
    }
