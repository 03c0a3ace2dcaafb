"""The optimizer of a run: DeepSpeed steps; before that the gradient is measured and clipped here, part by part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from rlhf_core.config import PluginError
from rlhf_plugin_deepspeed.moments import load_moments, moments_by_rows

if TYPE_CHECKING:
    from rlhf_core.distributed import NormPart
    from rlhf_plugin_deepspeed.fragments import Fragments
    from rlhf_plugin_deepspeed.strategy import Zero


class ZeroOptimizer:
    """AdamW over what this rank steps."""

    def __init__(self, strategy: Zero, engine: Any, inner: torch.optim.Optimizer, fragments: Fragments) -> None:
        self.strategy, self.engine, self.inner, self.fragments = strategy, engine, inner, fragments
        self.zero = engine.optimizer
        parameters = dict(engine.module.named_parameters())
        self._group_of = {parameters[row.name]: row.group for row in fragments.of}
        self._idle: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        inner.register_step_pre_hook(self._leave_out_idle)
        inner.register_step_post_hook(self._put_back)
        self._reached: set[torch.Tensor] = set()
        self._unreached = 0
        for parameter in self._group_of:
            parameter.register_post_accumulate_grad_hook(self._reached.add)

    def set_rates(self, factor: float, critic_factor: float) -> None:
        for group in self.inner.param_groups:
            group["lr"] = group["base_lr"] * (critic_factor if group["apart"] else factor)

    def micro_batch_done(self) -> None:
        """Count what the backward did not reach: from stage 2 on a parameter that a later micro-batch reaches first
        would be added to what the buffer still holds of the update before."""
        if self.strategy.config.stage > 1:
            self._unreached += len(self._group_of) - len(self._reached)
            self._reached.clear()

    def step(self, parts: Sequence[NormPart], max_norm: float) -> dict[str, float]:
        """See :class:`rlhf_core.plugins.strategy_protocols.RunOptimizer`."""
        flats = [self._flats(part) for part in parts]
        squares = [self._square(part) for part in flats]
        unreached = self._unreached if self.strategy.config.stage > 1 else len(self._group_of) - len(self._reached)
        *squares, missing = self.strategy.sum_over_ranks([*squares, unreached])
        self._reached.clear()
        self._unreached = 0
        if missing:
            self.discard()
            raise PluginError(
                f"{missing:.0f} parameters that are trained got no gradient",
                why="ZeRO takes none for zero and would let their weights decay, which one process does not",
                fix="--set strategy=ddp",
            )
        norms = [math.sqrt(square) if square >= 0 else math.nan for square in squares]
        measured = {part.metric: norm for part, norm in zip(parts, norms, strict=True) if part.learns}
        if not all(map(math.isfinite, measured.values())):
            self.discard()
            return measured
        for part, numbers, norm in zip(parts, flats, norms, strict=True):
            if not part.learns:
                self._scale(numbers, 0.0)
            elif norm > max_norm:
                self._scale(numbers, max_norm / (norm + 1e-6))
        learning = {self.fragments.groups[n] for part, row in zip(parts, flats) if part.learns for n in row}
        for number, group in enumerate(self.inner.param_groups):
            group["idle"] = number not in learning
        for norm in getattr(self.zero, "norm_for_param_grads", {}).values():
            norm.zero_()  # of offloaded gradients before they were clipped or dropped; what is not finite ended above
        with self.strategy.ranks._waiting("the optimizer's step"):
            self.engine.step()
        if self.zero.overflow:
            raise PluginError(
                "DeepSpeed left out a step whose norm is finite",
                why="weights and moments are as they were, and the run counts on an update",
                fix="--set strategy=fsdp, and report it",
            )
        return measured

    def _flats(self, part: NormPart) -> list[int]:
        """Which of the stepped tensors hold a part of the module."""
        groups = {self._group_of[p] for p in part.module.parameters() if p in self._group_of}
        return [n for n, group in enumerate(self.fragments.groups) if group in groups]

    def _gradients(self, number: int) -> list[torch.Tensor]:
        """Of one stepped tensor, in pieces; DeepSpeed has added them over ranks."""
        if not self.strategy.config.offload:
            return list(self.zero.averaged_gradients[number])
        if self.strategy.device.type == "cuda":  # they are copied to the host meanwhile
            torch.cuda.synchronize(self.strategy.device)
        gradient = self.fragments.stepped[number].grad
        return [] if gradient is None else [gradient]

    def _square(self, numbers: Sequence[int]) -> float:
        pieces = [piece for number in numbers for piece in self._gradients(number)]
        norms = [torch.linalg.vector_norm(piece, dtype=torch.float64) for piece in pieces]
        return float(torch.stack(norms).square().sum()) if norms else 0.0

    def _scale(self, numbers: Sequence[int], factor: float) -> None:
        for piece in (piece for number in numbers for piece in self._gradients(number)):
            piece.mul_(factor) if factor else piece.zero_()

    def _leave_out_idle(self, inner: torch.optim.Optimizer, *_: Any) -> None:
        """AdamW leaves alone what has no gradient: neither weights nor moments change."""
        tensors = [t for group in inner.param_groups if group["idle"] for t in group["params"]]
        self._idle = [(tensor, tensor.grad) for tensor in tensors]
        for tensor in tensors:
            tensor.grad = None

    def _put_back(self, *_: Any) -> None:
        for tensor, gradient in self._idle:
            tensor.grad = gradient
        self._idle = []

    def discard(self) -> None:
        self._reached.clear()
        self._unreached = 0
        drop_gradients(self.zero, self.fragments.stepped if self.strategy.config.offload else ())

    def state_dict(self) -> dict[str, Any]:
        """Moments by parameter, rows divided among ranks, as every strategy's checkpoint has them."""
        return moments_by_rows(self.inner, self.fragments, self.strategy)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_moments(state, self.inner, self.fragments, self.strategy)


def drop_gradients(zero: Any, offloaded: Sequence[torch.Tensor]) -> None:
    """As DeepSpeed does where it leaves out a step."""
    zero.zero_grad(set_to_none=True)
    zero.micro_step_id = 0 if hasattr(zero, "fp16_groups") else -1  # stage 3 counts from the first, the others before
    for gradients in (zero.averaged_gradients, getattr(zero, "all_grad_tensors", {})):
        for number in gradients:
            gradients[number] = None
    if offloaded:
        zero.reset_cpu_buffers()
        zero.accumulated_grads_in_cpu = {}
    for tensor in offloaded:
        if tensor.grad is not None:
            tensor.grad.zero_()
