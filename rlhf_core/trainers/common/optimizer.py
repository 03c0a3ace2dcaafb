"""AdamW and its schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from rlhf_core.trainers.common.config import OptimizerSettings


def make_optimizer(
    module: torch.nn.Module,
    settings: OptimizerSettings,
    apart: torch.nn.Module | None = None,
    apart_rate: float | None = None,
) -> torch.optim.AdamW:
    """AdamW over the trainable parameters; weight decay only on matrices, as usual.

    ``apart``, a part of the module, learns with ``apart_rate`` if one is given, and on a schedule of its own.
    """
    own = set() if apart is None else set(apart.parameters())
    groups: list[dict[str, Any]] = []
    for rate, chosen in ((settings.learning_rate, False), (apart_rate or settings.learning_rate, True)):
        trained = [p for p in module.parameters() if p.requires_grad and (p in own) is chosen]
        extra = {"base_lr": rate, "apart": chosen}
        groups += [
            {"params": [p for p in trained if p.ndim >= 2], "weight_decay": settings.weight_decay, **extra},
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0, **extra},
        ]
    return torch.optim.AdamW(
        [g for g in groups if g["params"]], lr=settings.learning_rate, betas=settings.betas, eps=settings.eps
    )


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


def set_learning_rate(
    optimizer: torch.optim.Optimizer, settings: OptimizerSettings, factor: float, apart_factor: float = 1.0
) -> float:
    """Set the learning rates of the next update, and return the policy's; what learns apart has its own factor."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * (apart_factor if group["apart"] else factor)
    return settings.learning_rate * factor
