"""The reference policy where ``trainer.reference`` says it lies, and in those numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from rlhf_core.config import ConfigError
from rlhf_core.models import has_meta_weights
from rlhf_core.models.reference import Reference
from rlhf_core.models.slices import read_weights
from rlhf_core.plugins.strategy_protocols import ShardedForward, Strategy
from rlhf_core.training.config import ReferencePlacement
from rlhf_core.training.policy_module import ReferencePolicy


class PlacedReference(ReferencePolicy):
    """A frozen copy that a strategy need not divide as it divides the policy; same arguments otherwise."""

    def __init__(
        self,
        reference: Reference,
        policy: Any,
        trained: torch.nn.Module,
        strategy: Strategy,
        sync_every: int,
        *,
        settings: ReferencePlacement,
    ) -> None:
        model, ranks, divides = reference.model, strategy, isinstance(strategy, ShardedForward)
        if settings.kind == "sharded" and not divides:
            raise ConfigError(
                "trainer.reference.kind=sharded: this strategy divides no weights",
                fix="--set strategy=fsdp, or trainer.reference.kind=whole",
            )
        if settings.kind in ("whole", "offload") and divides:
            ranks = undivided(strategy)
            if has_meta_weights(model):
                read_weights(model, strategy.device)
            model.to(strategy.device)
        if settings.dtype is not None:
            convert(model, getattr(torch, settings.dtype))
        super().__init__(reference, policy, trained, ranks, sync_every)
        self.strategy = strategy
        self.away = settings.kind == "offload"
        if self.away:
            model.to("cpu")

    def rows(self, samples: Sequence[Any], micro_batcher: Any, compute: Any) -> list[Any]:
        """As :meth:`ReferencePolicy.rows`; an offloaded copy is on the device for as long as this takes."""
        if not self.away:
            return super().rows(samples, micro_batcher, compute)
        self.reference.model.to(self.strategy.device)
        try:
            return super().rows(samples, micro_batcher, compute)
        finally:
            self.reference.model.to("cpu")


def convert(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Keep and compute a frozen copy in this type; mixed precision would hand a float32 result to its head."""
    for parameter in model.parameters():  # buffers are not: rotary frequencies are float32 in any model
        parameter.data = parameter.data.to(dtype)
    for part in model.modules() if dtype != torch.float32 else ():
        if vars(part).pop("compute_dtype", None) is not None:
            del part.forward


def undivided(strategy: Any) -> Strategy:
    """The ranks of a strategy that divides weights, which hold whole modules.

    Raises:
        ConfigError: the strategy does not name them.
    """
    if not hasattr(strategy, "ranks"):
        raise ConfigError(
            f"trainer.reference: {type(strategy).__name__} keeps no module whole",
            fix="leave trainer.reference.kind out, or sharded",
        )
    return strategy.ranks


def placed(settings: ReferencePlacement) -> Callable[..., ReferencePolicy]:
    """What makes the reference policy of a run with these settings."""
    return partial(PlacedReference, settings=settings)
