"""Checks that all kinds of losses share, whatever their batches hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from rlhf_core.config import ComponentConfig
from rlhf_core.losses import LossOutput
from rlhf_testing.report import require

B = TypeVar("B")
Loss = Callable[[Any], LossOutput]
POLICY = {"logprobs_BT", "chosen_B", "rejected_B", "logprobs_B"}
"""The fields that a loss is differentiated by."""


def changed(batch: B, change: Callable[[str, torch.Tensor], torch.Tensor]) -> B:
    """Apply ``change(name, tensor)`` to every tensor of a batch; the policy's are fresh leaves."""
    fields = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}  # pyright: ignore[reportArgumentType]
    new: dict[str, Any] = {k: None if v is None else change(k, v.detach().clone()) for k, v in fields.items()}
    return type(batch)(**{k: v.requires_grad_() if k in POLICY and v is not None else v for k, v in new.items()})


def check_pure(config: ComponentConfig, loss: Loss, batch: Any) -> None:
    """The same batch gives the same loss. That it is not written to is watched in every call (:mod:`.purity`)."""
    first, second = loss(batch).loss.detach().clone(), loss(batch).loss.detach()
    rule, fix = "a loss is a function of its batch", "keep no state and draw no random numbers in the loss"
    require(torch.equal(first, second), config, rule, "two calls gave different values", fix)
