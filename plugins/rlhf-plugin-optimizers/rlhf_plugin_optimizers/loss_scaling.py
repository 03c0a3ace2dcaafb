"""Dynamic loss scaling for float16 (Micikevicius et al. 2018), whose smallest numbers would lose small gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from rlhf_core.distributed import NormPart

GROWTH_INTERVAL = 2000
"""Steps without an overflow after which the scale doubles."""


class ScaledOptimizer:
    """An optimizer of gradients of ``loss * loss_scale``, which it divides before anything looks at them.

    A step whose gradient is not finite is left out (metric ``updates_skipped``) and halves the scale. Once that is 1,
    scaling is not the cause, and the norm is handed on as it is. The rules and numbers are those of torch's GradScaler.
    """

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.inner = getattr(optimizer, "inner", None)
        self.loss_scale = 2.0**16
        self.steps = 0
        """Since the scale changed."""

    def set_rates(self, factor: float, critic_factor: float) -> None:
        self.optimizer.set_rates(factor, critic_factor)

    @torch.no_grad()
    def step(self, parts: Sequence[NormPart], max_norm: float) -> dict[str, float]:
        for part in parts:
            for parameter in part.module.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(self.loss_scale)
        scale, norms = self.loss_scale, self.optimizer.step(parts, max_norm)
        if all(map(math.isfinite, norms.values())):
            self.steps += 1
            if self.steps == GROWTH_INTERVAL:
                self.loss_scale, self.steps = 2 * scale, 0
            return {**norms, "updates_skipped": 0.0, "loss_scale": scale}
        if scale <= 1:
            return norms
        self.loss_scale, self.steps = scale / 2, 0
        return {"updates_skipped": 1.0, "loss_scale": scale}

    def discard(self) -> None:
        self.optimizer.discard()

    def state_dict(self) -> dict[str, Any]:
        return {**self.optimizer.state_dict(), "scaling": [self.loss_scale, self.steps]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        rest = dict(state)
        self.loss_scale, self.steps = rest.pop("scaling")
        self.optimizer.load_state_dict(rest)
