"""Results of a layer that are computed again in the backward pass instead of kept."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks

Key = tuple[Any, ...]


class Again:
    """What of a layer is computed again: results by the memory that they lie in, while the layer computes."""

    def __init__(self) -> None:
        self.results: dict[Key, tuple[Cheap, torch.Tensor]] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Again:
        copied = memo[id(self)] = Again()
        return copied

    def compute(self, function: Callable[..., torch.Tensor], owner: torch.nn.Module, *inputs: Any) -> torch.Tensor:
        """``function(*inputs)``, which reads the parameters of ``owner`` too."""
        if self.results is None:
            return function(*inputs)
        parameters = list(owner.parameters())
        if not torch.is_grad_enabled() or not any(x.requires_grad for x in (*inputs, *parameters)):
            return function(*inputs)
        cheap = Cheap(function, owner, inputs)
        result = _Cheap.apply(cheap, len(inputs), *inputs, *parameters)
        self.results[_key(result)] = cheap, result
        return result

    @contextmanager
    def keeping(self) -> Generator[None, None, None]:
        """Inside, operations that keep such a result for the backward pass keep how it is computed."""
        self.results = results = {}

        def pack(tensor: torch.Tensor) -> Any:
            cheap, result = results.get(_key(tensor), (None, tensor))
            same = cheap is not None and tensor.is_contiguous() and result.is_contiguous() and result._version == 0
            return (cheap, tensor.shape) if same else tensor

        try:
            with saved_tensors_hooks(pack, _unpack):
                yield
        finally:
            self.results = None
            results.clear()


class Cheap:
    """A result that the backward pass computes again, once, however many operations read it."""

    def __init__(self, function: Callable[..., torch.Tensor], owner: torch.nn.Module, inputs: Any) -> None:
        self.function, self.owner = function, owner
        self.inputs = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
        self.versions = self._versions()
        device = inputs[0].device.type
        enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        self.precision = partial(torch.autocast, device, dtype, enabled, cache_enabled=False)
        self.result: torch.Tensor | None = None

    def again(self) -> torch.Tensor:
        """The result, with a graph to the inputs and parameters.

        Raises:
            RuntimeError: one of these was changed in place, or :meth:`gradients` has freed them.
        """
        if self.result is not None:
            return self.result
        if not self.inputs:
            raise RuntimeError(
                "model.gradient_checkpointing=selective keeps nothing for a second backward pass of a forward; "
                "set it to true or false"
            )
        if self._versions() != self.versions:
            raise RuntimeError(
                f"one of the variables needed to compute {type(self.owner).__name__} again has been modified by an "
                "inplace operation after the forward pass, which model.gradient_checkpointing=selective does not allow"
            )
        torch.autocast_increment_nesting()  # the end of an outermost autocast empties a cache that threads share
        try:
            with torch.enable_grad(), self.precision():
                self.result = self.function(*self.inputs)
        finally:
            torch.autocast_decrement_nesting()
        return self.result

    def gradients(self, gradient: torch.Tensor) -> list[torch.Tensor | None]:
        """By inputs and parameters, None where none is wanted; frees what was computed."""
        leaves = self._leaves()
        wanted = [x for x in leaves if x.requires_grad]
        found = iter(torch.autograd.grad(self.again(), wanted, gradient, allow_unused=True))
        self.result, self.inputs = None, []
        return [next(found) if x.requires_grad else None for x in leaves]

    def _leaves(self) -> list[torch.Tensor]:
        return [*self.inputs, *self.owner.parameters()]

    def _versions(self) -> list[int]:
        return [x._version for x in self._leaves()]


class _Cheap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, cheap: Cheap, count: int, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.cheap = cheap
        return cheap.function(*inputs[:count])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, None, *ctx.cheap.gradients(*gradients)


def _key(tensor: torch.Tensor) -> Key:
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.numel(), tensor.dtype


def _unpack(kept: Any) -> torch.Tensor:
    if isinstance(kept, torch.Tensor):
        return kept
    cheap, shape = kept
    return cheap.again().detach().view(shape)
