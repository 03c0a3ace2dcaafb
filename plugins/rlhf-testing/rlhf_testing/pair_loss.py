"""Properties of pair losses."""

from __future__ import annotations

from typing import Any

import torch

from rlhf_core.config import ComponentConfig
from rlhf_core.losses import LossOutput, PairBatch, UnpairedBatch
from rlhf_testing.report import require
from rlhf_testing.token_loss import Loss, changed, check_pure, number, same_metrics


def make_pair_batch(gap_B: torch.Tensor, centre: float = -20.0) -> PairBatch:
    """Pairs whose chosen side is ``gap_B`` above the rejected, relative to the reference; sums of 20 logprobs."""
    count = len(gap_B)
    level = torch.full((count,), centre, dtype=torch.float64)
    lengths = torch.full((count,), 20)
    return PairBatch(
        (level + gap_B / 2).requires_grad_(),
        (level - gap_B / 2).requires_grad_(),
        level.clone(),
        level.clone(),
        torch.zeros_like(level),
        torch.ones_like(level),
        lengths,
        lengths.clone(),
    )


def gradients(loss: Loss, batch: PairBatch) -> torch.Tensor:
    """Gradient of the summed loss, ``[2, B]``: chosen, rejected."""
    return torch.stack(torch.autograd.grad(loss(batch).loss.sum(), (batch.chosen_B, batch.rejected_B)))


def check_pair_loss(config: ComponentConfig, loss: Loss) -> None:
    batch = make_pair_batch(torch.tensor([-2.0, -1.0, 0.3, 1.5, -0.5], dtype=torch.float64))
    check_output(config, loss, batch)
    check_pure(config, loss, batch)
    check_margin(config, loss)
    check_micro_batches(config, loss, batch)
    check_weights(config, loss, batch)


def check_output(config: ComponentConfig, loss: Loss, batch: Any) -> None:
    """``loss_B``, finite, with a gradient."""
    out: Any = loss(batch)
    rule = "a loss returns LossOutput"
    require(isinstance(out, LossOutput), config, rule, type(out).__name__, "return LossOutput(loss_B, metrics)")
    shape = tuple((batch.chosen_B if isinstance(batch, PairBatch) else batch.logprobs_B).shape)
    rule, fix = "loss_B is unreduced, one value per row", "return it without mean() or sum()"
    require(tuple(out.loss.shape) == shape, config, rule, f"shape {tuple(out.loss.shape)} for {shape[0]} rows", fix)
    require(bool(torch.isfinite(out.loss).all()), config, "the loss is finite", str(out.loss.tolist()))
    require(out.loss.requires_grad, config, "the loss has a gradient", "loss_B.requires_grad is False", "do not detach")


def check_margin(config: ComponentConfig, loss: Loss) -> None:
    """From a wrong order up to no difference, the loss falls with the margin, and its gradient widens it.

    A loss whose config says ``monotone = False`` (a class variable) is only asked for the gradient's direction at -3.
    """
    if not getattr(config, "monotone", True):
        chosen, rejected = gradients(loss, make_pair_batch(torch.tensor([-3.0], dtype=torch.float64)))
        seen = f"at -3: dloss/dchosen {chosen.tolist()}, dloss/drejected {rejected.tolist()}"
        require(bool((chosen < rejected).all()), config, "gradient descent widens a wrong margin", seen)
        return
    gap = torch.linspace(-3.0, 0.0, 7, dtype=torch.float64)
    batch = make_pair_batch(gap)
    values = loss(batch).loss.detach()
    rule, fix = "the loss falls as chosen rises above rejected", "check which side is subtracted"
    require(bool((values.diff() < 0).all()), config, rule, f"margins {gap.tolist()}: {values.tolist()}", fix)
    chosen, rejected = gradients(loss, batch)
    seen = f"dloss/dchosen {chosen.tolist()}, dloss/drejected {rejected.tolist()}"
    require(bool((chosen < rejected).all()), config, "gradient descent widens the margin", seen)


def check_micro_batches(config: ComponentConfig, loss: Loss, batch: PairBatch) -> None:
    """No pair's gradient depends on the others, and metrics add up."""
    whole, out = gradients(loss, batch), loss(batch)
    parts = [changed(batch, lambda _, v, a=a: v[a : a + 2]) for a in range(0, len(batch.chosen_B), 2)]
    gap = float((torch.cat([gradients(loss, p) for p in parts], dim=1) - whole).abs().max())
    rule = "micro-batches add up to the whole batch"
    require(gap < 1e-12, config, rule, f"the gradient differs by {gap:.3g}", "no mean over the batch inside a loss")
    outs = [loss(p) for p in parts]
    total = {k: tuple(sum(number(o.metrics[k][i]) for o in outs) for i in (0, 1)) for k in out.metrics}
    same_metrics(config, out.metrics, total, "the metrics of micro-batches add up")


def check_weights(config: ComponentConfig, loss: Loss, batch: PairBatch) -> None:
    """The core multiplies by the pairs' weights; a loss that does so too would count them twice."""
    heavier = changed(batch, lambda k, v: v * 3 if k == "weights_B" else v)
    same = torch.allclose(loss(batch).loss, loss(heavier).loss, rtol=0, atol=1e-12)
    rule, fix = "the loss leaves weights_B to the core", "do not multiply the loss by weights_B; metrics may use it"
    require(same, config, rule, "loss_B changed with the weights", fix)


def make_unpaired_batch(h_B: torch.Tensor) -> UnpairedBatch:
    """Responses whose log ratio to the reference is ``h_B``; every other one is desirable."""
    level = torch.full((len(h_B),), -20.0, dtype=torch.float64)
    return UnpairedBatch(
        (level + h_B).requires_grad_(), torch.arange(len(h_B)) % 2 == 0, level, torch.full_like(level, 0.4)
    )


def check_unpaired_loss(config: ComponentConfig, loss: Loss) -> None:
    """All properties of a loss of single responses."""
    batch = make_unpaired_batch(torch.tensor([-2.0, -1.0, 0.3, 1.5, -0.5], dtype=torch.float64))
    check_output(config, loss, batch)
    check_pure(config, loss, batch)
    gradient = grad(loss, batch)
    right = torch.where(batch.desirable_B, gradient < 0, gradient > 0)
    rule = "gradient descent raises desirable responses and lowers the others"
    seen = f"dloss/dlogprob {gradient.tolist()} for {batch.desirable_B.tolist()}"
    require(bool(right.all()), config, rule, seen, "check the sign of either branch")
    parts = [grad(loss, changed(batch, lambda _, v, a=a: v[a : a + 2])) for a in range(0, 5, 2)]
    gap = float((torch.cat(parts) - gradient).abs().max())
    rule = "micro-batches add up to the whole batch"
    require(gap < 1e-12, config, rule, f"the gradient differs by {gap:.3g}", "no mean over the batch inside a loss")


def grad(loss: Loss, batch: UnpairedBatch) -> torch.Tensor:
    """Gradient of the summed loss, ``[B]``."""
    return torch.autograd.grad(loss(batch).loss.sum(), batch.logprobs_B)[0]
