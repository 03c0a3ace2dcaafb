"""Properties of losses of single responses with a verdict."""

from __future__ import annotations

import torch

from rlhf_core.config import ComponentConfig
from rlhf_core.losses import UnpairedBatch
from rlhf_testing.batches import Loss, changed, check_pure
from rlhf_testing.pair_loss import check_output
from rlhf_testing.report import require


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
