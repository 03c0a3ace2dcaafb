"""Checks of what losses and agents return: one that broadcasts or is masked wrongly would train on something else."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from rlhf_core.plugins.component_calls import component_errors, label_of
from rlhf_core.plugins.contracts import contract_error
from rlhf_core.plugins.protocols import Loss
from rlhf_core.types.batches import LossOutput, PairBatch, UnpairedBatch
from rlhf_core.types.messages import POLICY
from rlhf_core.types.rollouts import Rollout

CORE_METRICS = frozenset({"loss", "grad_norm", "critic_grad_norm", "learning_rate", "train/tokens", "updates_skipped"})
"""What the core measures under these names is no loss's to say."""


LossTerm = Callable[[LossOutput, Any], LossOutput]
"""(What the loss returned, its batch) -> the same with a further term; unreduced, as the loss is."""


class CheckedLoss:
    """A loss whose every answer is checked before terms are added to it.

    Args:
        loss: a component.
        label: names it in errors; "" takes what it was built as.
        terms: added one after the other.
    """

    def __init__(self, loss: Loss, label: str = "", terms: Sequence[LossTerm] = ()) -> None:
        self.loss, self.label, self.terms = loss, label or label_of(loss, "loss"), tuple(terms)

    def __call__(self, batch: Any) -> LossOutput:
        """The loss's answer, with the terms.

        In-place operations are seen by the count that torch keeps of them for autograd: nothing is copied or compared.

        Raises:
            PluginError: the answer does not fit the batch, or the loss has changed the batch, which the core and the
                terms use next.
            ComponentError: the loss raised.
        """
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


def checked_loss(loss: Loss) -> CheckedLoss:
    """The loss, checked once."""
    return loss if isinstance(loss, CheckedLoss) else CheckedLoss(loss)


def _fields(batch: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(batch):
        return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return dict(vars(batch)) if hasattr(batch, "__dict__") else {}


def expected_shape(batch: Any) -> tuple[int, ...] | None:
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
    shape, expected = tuple(answer.loss.shape), expected_shape(batch)
    if expected is None and len(shape) != 1:
        raise contract_error(label, f"a loss of shape {shape}", f"one value per row of {type(batch).__name__}")
    if expected is not None and shape != expected:
        unit = "token, masked and averaged by the core" if len(expected) == 2 else "row, averaged by the core"
        raise contract_error(label, f"a loss of shape {shape}", f"shape {expected}: one value per {unit}")
    if torch.is_grad_enabled() and not answer.loss.requires_grad:
        raise contract_error(
            label, "a loss without a gradient", "one that the policy's logprobs were not detached from"
        )
    rows: Mapping[str, Any] = answer.metrics
    for name, row in rows.items():
        if name in CORE_METRICS:
            raise contract_error(label, f"metric '{name}'", "a name of its own: the core measures that")
        if not (isinstance(row, tuple) and len(row) == 2 and all(map(_one_number, row))):
            shapes = (
                [tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in row] if isinstance(row, tuple) else row
            )
            raise contract_error(label, f"metric '{name}' as {shapes!r:.80}", "(sum, weight), a number each")
    return answer


def _one_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return isinstance(value, (int, float)) or getattr(value, "shape", None) == ()


def check_episode(rollout: Rollout, max_tokens: int, label: str) -> None:
    """Refuse an episode that is longer than asked for, or whose mask, logprobs and turns disagree.

    Args:
        rollout: its shapes have been checked (``MalformedRollout``).
        max_tokens: of the whole episode, results of tools included.
        label: names the agent.

    Raises:
        PluginError: names the episode, what is wrong, and what was expected.
    """
    name = f"{rollout.prompt_id}#{rollout.group_index}"
    count = len(rollout.completion_ids)
    if not 0 < count <= max_tokens:
        raise contract_error(
            label,
            f"{count} tokens for {name}",
            f"1 to {max_tokens}, results of tools included: sampling.max_tokens is the budget of an episode",
        )
    mask_T = np.ones(count, bool) if rollout.mask_T is None else np.asarray(rollout.mask_T)
    if mask_T.dtype != np.bool_:
        raise contract_error(label, f"a mask of {mask_T.dtype} for {name}", "booleans")
    read_T = ~mask_T
    if (bad := np.flatnonzero(read_T & (np.asarray(rollout.logprobs_T) != 0))).size:
        value = float(rollout.logprobs_T[bad[0]])
        raise contract_error(
            label, f"logprob {value:g} at token {bad[0]} of {name}, which is masked", "0.0 where mask_T is False"
        )
    if not mask_T.any():
        raise contract_error(label, f"{name} without a token of the policy", "mask_T True somewhere")
    if read_T.any() and not rollout.turns:
        raise contract_error(
            label,
            f"masked tokens in {name}, but no turns",
            "Rollout.turns, which say who wrote what: a reward must see nothing that the policy did not write",
        )
    for turn in rollout.turns:
        _check_turn(turn.role, turn.span, turn.message, mask_T, name, label)
    for segment in rollout.segments:
        start, end = segment.span
        if segment.role != POLICY and segment.prompt_ids is None and mask_T[start:end].any():
            raise contract_error(label, f"a segment of role '{segment.role}' with policy tokens in {name}", "a mask")


def _check_turn(role: str, span: tuple[int, int], message: Any, mask_T: Any, name: str, label: str) -> None:
    """A turn's message is JSON; none but the policy's holds tokens that count."""
    start, end = span
    if role != POLICY and mask_T[start:end].any():
        raise contract_error(
            label,
            f"a turn of role '{role}' in {name}, tokens {start} to {end}, that mask_T says the policy chose",
            f"mask_T False outside of turns of role '{POLICY}'",
        )
    try:
        json.dumps(message, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise contract_error(label, f"a message in {name} that is not JSON: {error}", "JSON values only") from error
