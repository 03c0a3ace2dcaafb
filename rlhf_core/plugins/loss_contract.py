"""Checks of what a loss returns. A shape that broadcasts would train on something else, unmasked, without an error."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from rlhf_core.plugins.component_calls import component_errors, label_of
from rlhf_core.plugins.contracts import contract_error
from rlhf_core.plugins.protocols import Loss
from rlhf_core.types.batches import LossOutput, PairBatch, UnpairedBatch

CORE_METRICS = frozenset({"loss", "grad_norm", "critic_grad_norm", "learning_rate", "train/tokens", "updates_skipped"})
"""What the core measures under these names is no loss's to say."""


LossTerm = Callable[[LossOutput, Any], LossOutput]
"""(What the loss returned, its batch) -> the same with a further term; unreduced, as the loss is."""


class CheckedLoss:
    """A loss whose every answer is checked before terms are added to it."""

    def __init__(self, loss: Loss, label: str = "", terms: Sequence[LossTerm] = ()) -> None:
        self.loss, self.label, self.terms = loss, label or label_of(loss, "loss"), tuple(terms)

    def __call__(self, batch: Any) -> LossOutput:
        """The loss's answer, with the terms; in-place operations are seen by torch's own count of them."""
        tensors = {name: tensor for name, tensor in _fields(batch).items() if isinstance(tensor, torch.Tensor)}
        before = {name: t._version for name, t in tensors.items() if not t.is_inference()}
        with component_errors(self.label, "__call__()"):
            try:
                answer = self.loss(batch)
            except RuntimeError as error:
                if "in-place operation" not in str(error):
                    raise
                expected = "a new tensor; a loss changes nothing in place"
                raise contract_error(self.label, f"no loss: {error}", expected) from error
        changed = [name for name, version in before.items() if tensors[name]._version != version]
        replaced = [name for name, tensor in tensors.items() if getattr(batch, name) is not tensor]
        if changed or replaced:
            raise contract_error(
                self.label,
                f"its loss after changing {', '.join([*changed, *replaced])} of the batch",
                "a batch left as it was: no in-place operations (mul_, masked_fill_, zero_) on it or on views of it",
            )
        out = check_loss(answer, batch, self.label)
        for term in self.terms:
            out = term(out, batch)
        return out


def checked_loss(loss: Loss, module: torch.nn.Module) -> CheckedLoss:
    """The loss, checked once, with the ``loss_terms`` that parts of the module have."""
    terms = tuple(term for part in module.modules() for term in part.__dict__.get("loss_terms", ()))
    checked = loss if isinstance(loss, CheckedLoss) else CheckedLoss(loss)
    return CheckedLoss(checked.loss, checked.label, [*checked.terms, *terms]) if terms else checked


def _fields(batch: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(batch):
        return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return dict(vars(batch)) if hasattr(batch, "__dict__") else {}


def expected_shape(batch: Any) -> tuple[int, ...] | None:
    """Shape of an unreduced loss: that of the mask, or one value per row; None for other batches without a mask."""
    mask_BT = getattr(batch, "mask_BT", None)
    if mask_BT is not None:
        return tuple(mask_BT.shape)
    if isinstance(batch, PairBatch):
        return tuple(batch.chosen_B.shape)
    return tuple(batch.logprobs_B.shape) if isinstance(batch, UnpairedBatch) else None


def check_loss(answer: Any, batch: Any, label: str) -> LossOutput:
    """Return what a loss returned, if it has one value per token (or row) of its batch, and metrics that add up."""
    if not isinstance(answer, LossOutput):
        raise contract_error(label, f"a {type(answer).__name__}", "LossOutput(loss, metrics)")
    if not (isinstance(answer.loss, torch.Tensor) and isinstance(answer.metrics, Mapping)):
        came = f"LossOutput({type(answer.loss).__name__}, {type(answer.metrics).__name__})"
        raise contract_error(label, came, "LossOutput of a tensor, and a mapping of metrics")
    shape, wanted = tuple(answer.loss.shape), expected_shape(batch)
    if wanted is None and len(shape) != 1:
        raise contract_error(label, f"a loss of shape {shape}", f"one value per row of {type(batch).__name__}")
    if wanted is not None and shape != wanted:
        unit = "token, masked and averaged by the core" if len(wanted) == 2 else "row, averaged by the core"
        raise contract_error(label, f"a loss of shape {shape}", f"shape {wanted}: one value per {unit}")
    if not answer.loss.is_floating_point():
        raise contract_error(label, f"a loss of {answer.loss.dtype}", "floating-point numbers, which have a gradient")
    if torch.is_grad_enabled() and not answer.loss.requires_grad:
        expected = "one that the policy's logprobs were not detached from"
        raise contract_error(label, "a loss without a gradient", expected)
    for name, row in answer.metrics.items():
        if name in CORE_METRICS:
            raise contract_error(label, f"metric '{name}'", "a name of its own: the core measures that")
        if not (isinstance(row, tuple) and len(row) == 2 and all(map(_one_number, row))):
            values = row if isinstance(row, tuple) else (row,)
            shapes = [tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in values]
            raise contract_error(label, f"metric '{name}' as {shapes!r:.80}", "(sum, weight), a number each")
    return answer


def _one_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return isinstance(value, (int, float)) or getattr(value, "shape", None) == ()
