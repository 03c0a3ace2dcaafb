"""Checks of what a loss returns. A shape that broadcasts would train on something else, unmasked, without an error."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from rlhf_core.plugins.component_errors import blamed_on
from rlhf_core.plugins.contracts import contract_error
from rlhf_core.plugins.protocols import Loss
from rlhf_core.types.batches import LossOutput, PairBatch, UnpairedBatch

CORE_METRICS = frozenset({"loss", "grad_norm", "critic_grad_norm", "learning_rate", "train/tokens", "updates_skipped"})
"""What the core measures under these names is no loss's to say."""


class CheckedLoss:
    """A loss whose every answer is checked before terms are added to it.

    Args:
        loss: a component.
        label: names it in errors.
    """

    def __init__(self, loss: Loss, label: str) -> None:
        self.loss, self.label = loss, label

    def __call__(self, batch: Any) -> LossOutput:
        """The loss's answer.

        Raises:
            PluginError: it does not fit the batch, or the loss has changed the batch.
        """
        return call_loss(self.loss, batch, self.label)


def call_loss(loss: Loss, batch: Any, label: str) -> LossOutput:
    """Call a loss, and check its answer and that it has left the batch alone: the core and other terms use it next.

    In-place operations are seen by the count that torch keeps of them for autograd: nothing is copied or compared.

    Raises:
        PluginError: names the tensor that was changed, or what came and what was expected.
        ComponentError: the loss raised.
    """
    tensors = {name: tensor for name, tensor in _fields(batch).items() if isinstance(tensor, torch.Tensor)}
    before = {name: t._version for name, t in tensors.items() if not t.is_inference()}
    with blamed_on(label, "__call__()"):
        try:
            answer = loss(batch)
        except RuntimeError as error:
            if "in-place operation" not in str(error):
                raise
            raise contract_error(label, f"no loss: {error}", "a new tensor; a loss changes nothing in place") from error
    changed = [name for name, version in before.items() if tensors[name]._version != version]
    replaced = [name for name, tensor in tensors.items() if getattr(batch, name) is not tensor]
    if changed or replaced:
        raise contract_error(
            label,
            f"its loss after changing {', '.join([*changed, *replaced])} of the batch",
            "a batch left as it was: no in-place operations (mul_, masked_fill_, zero_) on it or on views of it",
        )
    return check_loss(answer, batch, label)


def _fields(batch: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(batch):
        return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return dict(vars(batch)) if hasattr(batch, "__dict__") else {}


def wanted_shape(batch: Any) -> tuple[int, ...] | None:
    """Shape of an unreduced loss: that of the mask, or one value per row; None for a batch of a trainer's own kind
    that has no mask."""
    mask_BT = getattr(batch, "mask_BT", None)
    if mask_BT is not None:
        return tuple(mask_BT.shape)
    if isinstance(batch, PairBatch):
        return tuple(batch.chosen_B.shape)
    return tuple(batch.logprobs_B.shape) if isinstance(batch, UnpairedBatch) else None


def check_loss(answer: Any, batch: Any, label: str) -> LossOutput:
    """Return what a loss returned, if it has one value per token (or row) of its batch, and metrics that add up.

    Args:
        answer: of the loss.
        batch: what it consumed.
        label: names it in errors.

    Raises:
        PluginError: names what came and what was expected.
    """
    if not isinstance(answer, LossOutput):
        raise contract_error(label, f"a {type(answer).__name__}", "LossOutput(loss, metrics)")
    if not (isinstance(answer.loss, torch.Tensor) and isinstance(answer.metrics, Mapping)):
        came = f"LossOutput({type(answer.loss).__name__}, {type(answer.metrics).__name__})"
        raise contract_error(label, came, "LossOutput of a tensor, and a mapping of metrics")
    shape, wanted = tuple(answer.loss.shape), wanted_shape(batch)
    if wanted is None and len(shape) != 1:
        raise contract_error(label, f"a loss of shape {shape}", f"one value per row of {type(batch).__name__}")
    if wanted is not None and shape != wanted:
        unit = "token, masked and averaged by the core" if len(wanted) == 2 else "row, averaged by the core"
        raise contract_error(label, f"a loss of shape {shape}", f"shape {wanted}: one value per {unit}")
    if torch.is_grad_enabled() and not answer.loss.requires_grad:
        raise contract_error(
            label, "a loss without a gradient", "one that the policy's logprobs were not detached from"
        )
    for name, row in answer.metrics.items():
        _check_metric(name, row, label)
    return answer


def _check_metric(name: str, row: Any, label: str) -> None:
    if name in CORE_METRICS:
        raise contract_error(label, f"metric '{name}'", "a name of its own: the core measures that")
    if not (isinstance(row, tuple) and len(row) == 2 and all(map(_one_number, row))):
        came = [tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in row] if isinstance(row, tuple) else row
        raise contract_error(label, f"metric '{name}' as {came!r:.80}", "(sum, weight), a number each")


def _one_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return isinstance(value, (int, float)) or getattr(value, "shape", None) == ()
