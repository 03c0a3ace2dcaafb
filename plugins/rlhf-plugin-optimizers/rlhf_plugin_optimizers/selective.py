"""``model.gradient_checkpointing=selective``: norms and activation functions are computed again in the backward pass,
so that of a layer only what its products and attention read is kept. Selective recomputation is of Korthikanti et al.
(2022), who compute attention's scores again, which fused attention keeps in no case.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks
from transformers.modeling_layers import GradientCheckpointingLayer

from rlhf_core.models import ModelError

Key = tuple[Any, ...]
GATED = ("gate_proj", "up_proj", "down_proj", "act_fn")
"""Modules of a gated feed-forward, ``down(act(gate(x)) * up(x))``."""


def keep_less(model: Any) -> None:
    """Let each decoder layer of a model compute its norms and gated activations again in the backward pass.

    Raises:
        ModelError: no layer has such parts, or the logits are others then.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    weight = next(model.parameters())
    real = not (weight.is_meta or isinstance(weight, FakeTensor))
    ids_BL = torch.arange(1, 8, device=weight.device)[None] % base.config.get_text_config().vocab_size
    with torch.no_grad():
        plain = base(input_ids=ids_BL, use_cache=False)[0] if real else ids_BL
    found = sum(_patch(layer) for layer in base.modules() if isinstance(layer, GradientCheckpointingLayer))
    if not found and not isinstance(weight, FakeTensor):
        raise ModelError(
            f"model.gradient_checkpointing=selective finds nothing to compute again in {type(base).__name__}",
            why="it knows norms with a weight, and feed-forwards with " + ", ".join(GATED),
            fix="--set model.gradient_checkpointing=true",
        )
    if not real:
        return
    with torch.enable_grad():
        recomputing = base(input_ids=ids_BL, use_cache=False)[0]
    if not torch.equal(recomputing, plain):
        raise ModelError(
            f"model.gradient_checkpointing=selective changes what {type(base).__name__} computes",
            why="its feed-forward is not down(act(gate(x)) * up(x))",
            fix="--set model.gradient_checkpointing=true",
        )


def _patch(layer: torch.nn.Module) -> int:
    """How many parts of a layer compute again."""
    again = Again()
    found = 0
    for module in list(layer.modules()):
        own = dict(module.named_parameters(recurse=False))
        if type(module).__name__.endswith("Norm") and "weight" in own:
            _replace(module, _norm, again)
        elif all(hasattr(module, name) for name in GATED):
            _replace(module, _gated, again)
        else:
            continue
        found += 1
    if found:
        _replace(layer, _layer, again)
    return found


def _replace(module: Any, forward: Callable[..., Any], again: Again) -> None:
    """A deep copy of a model binds the methods to the copy's modules."""
    module._again, module._plain = again, module.forward
    module.forward = MethodType(forward, module)


def _layer(self: Any, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return self._plain(*args, **kwargs)
    with self._again.keeping():
        return self._plain(*args, **kwargs)


def _norm(self: Any, hidden: torch.Tensor) -> torch.Tensor:
    return self._again.compute(self._plain, self, hidden)


def _gated(self: Any, hidden: torch.Tensor) -> torch.Tensor:
    gate, up = self.gate_proj(hidden), self.up_proj(hidden)
    return self.down_proj(self._again.compute(lambda a, b: self.act_fn(a) * b, self.act_fn, gate, up))


class Again:
    """What of a layer is computed again: results by the memory that they lie in, while the layer computes."""

    def __init__(self) -> None:
        self.results: dict[Key, tuple[Cheap, torch.Tensor]] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Again:
        copied = memo[id(self)] = Again()
        return copied

    def compute(self, function: Callable[..., torch.Tensor], owner: torch.nn.Module, *inputs: Any) -> torch.Tensor:
        """``function(*inputs)``, which reads the parameters of ``owner`` too."""
        parameters = list(owner.parameters(recurse=False))
        learns = torch.is_grad_enabled() and any(x.requires_grad for x in (*inputs, *parameters))
        if self.results is None or not learns:
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
        device = inputs[0].device.type
        enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        self.precision = partial(torch.autocast, device, dtype, enabled, cache_enabled=False)
        self.result: torch.Tensor | None = None

    def again(self) -> torch.Tensor:
        if self.result is None:
            with torch.enable_grad(), self.precision():
                self.result = self.function(*self.inputs)
        return self.result

    def gradients(self, gradient: torch.Tensor) -> list[torch.Tensor | None]:
        """By inputs and parameters, None where none is wanted; frees what was computed."""
        leaves = [*self.inputs, *self.owner.parameters(recurse=False)]
        found = iter(torch.autograd.grad(self.again(), [x for x in leaves if x.requires_grad], gradient))
        self.result, self.inputs = None, []
        return [next(found) if x.requires_grad else None for x in leaves]


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
