"""AdamW and its schedule."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from rlhf_core.trainers.config import OptimizerSettings


def make_optimizer(module: torch.nn.Module, settings: OptimizerSettings) -> torch.optim.AdamW:
    """AdamW over the trainable parameters; weight decay only on matrices, as usual."""
    trained = [p for p in module.parameters() if p.requires_grad]
    groups = [{"params": [p for p in trained if p.ndim >= 2], "weight_decay": settings.weight_decay},
              {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=settings.learning_rate, betas=settings.betas,
                             eps=settings.eps)


def lr_factor(settings: OptimizerSettings, total: int) -> Callable[[int], float]:
    """Return update number (from 0) -> factor on the learning rate.

    The first update already has a rate above 0: ``(n + 1) / warmup_steps``.
    """

    def factor(n: int) -> float:
        if n < settings.warmup_steps:
            return (n + 1) / settings.warmup_steps
        if settings.schedule == "constant":
            return 1.0
        left = max(1, total - settings.warmup_steps)
        done = min(1.0, (n - settings.warmup_steps) / left)
        return 1.0 - done if settings.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))

    return factor


def set_learning_rate(optimizer: torch.optim.Optimizer, settings: OptimizerSettings, factor: float) -> float:
    """Set and return the learning rate of the next update."""
    rate = settings.learning_rate * factor
    for group in optimizer.param_groups:
        group["lr"] = rate
    return rate
