"""``model.gradient_checkpointing=selective``: norms and gated activations are computed again in the backward pass,
instead of kept; casts of them for mixed precision are kept. Selective recomputation is of Korthikanti et al. (2022),
who compute attention's scores again, which fused attention keeps in no case.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType, SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from transformers.modeling_layers import GradientCheckpointingLayer

from rlhf_core.models import ModelError
from rlhf_plugin_optimizers.recompute import Again

GATED = ("gate_proj", "up_proj", "down_proj", "act_fn")
"""Modules of a gated feed-forward, ``down(act(gate(x)) * up(x))``."""


def keep_less(model: Any) -> None:
    """Let each decoder layer of a model compute its norms and gated activations again in the backward pass.

    Raises:
        ModelError: no layer has such parts, or the logits are others then, where the model has weights already.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    weight = next(model.parameters())
    real = not (weight.is_meta or isinstance(weight, FakeTensor))
    ids_BL = torch.arange(1, 8, device=weight.device)[None] % base.config.get_text_config().vocab_size

    def logits() -> torch.Tensor:
        with torch.enable_grad():  # both times: without gradients some kernels are others
            return base(input_ids=ids_BL, use_cache=False)[0].detach()

    plain = logits() if real else ids_BL
    layers = [module for module in base.modules() if isinstance(module, GradientCheckpointingLayer)]
    inner = {part for layer in layers for part in layer.modules() if part is not layer}
    found = sum(_patch(layer) for layer in layers if layer not in inner)
    if not found and not isinstance(weight, FakeTensor):
        raise ModelError(
            f"model.gradient_checkpointing=selective finds nothing to compute again in {type(base).__name__}",
            why="it knows norms with a weight, and feed-forwards that are down(act(gate(x)) * up(x)) with the modules "
            + ", ".join(GATED),
            fix="--set model.gradient_checkpointing=true",
        )
    if real and not torch.equal(logits(), plain):
        raise ModelError(
            f"model.gradient_checkpointing=selective changes what {type(base).__name__} computes",
            why="a norm or a feed-forward is another without gradients",
            fix="--set model.gradient_checkpointing=true",
        )


def _patch(layer: torch.nn.Module) -> int:
    """How many parts of a layer compute again."""
    again = Again()
    found = 0
    for module in list(layer.modules()):
        if hasattr(module, "_again"):  # layers may share it
            continue
        if type(module).__name__.endswith("Norm") and "weight" in module._parameters:
            _replace(module, _norm, again)
        elif _is_gated(module):
            _replace(module, _gated, again)
        else:
            continue
        found += 1
    if found:
        _replace(layer, _layer, again)
    return found


def _is_gated(module: torch.nn.Module) -> bool:
    """Whether a module computes ``down(act(gate(x)) * up(x))`` and nothing else: no clamp, no other rounding."""
    parts = [getattr(module, name, None) for name in GATED]
    if "forward" in vars(module) or not all(isinstance(part, torch.nn.Module) for part in parts):
        return False
    stub: Any = SimpleNamespace(
        gate_proj=lambda x: 3 * x, up_proj=lambda x: x - 2, down_proj=torch.neg, act_fn=torch.square
    )
    # inside a memory plan torch's modes answer every comparison with yes
    with unset_fake_temporarily(), torch._C.DisableTorchFunction(), torch.no_grad():
        x = torch.linspace(-12, 12, 400, device="cpu").sinh().bfloat16().view(1, 400, 1)
        wanted = stub.down_proj(stub.act_fn(stub.gate_proj(x)) * stub.up_proj(x))
        try:
            return torch.equal(type(module).forward(stub, x), wanted)
        except Exception:  # it reads more than the four, or returns more
            return False


def _replace(module: Any, forward: Callable[..., Any], again: Again) -> None:
    """A deep copy of a model binds the methods to the copy's modules."""
    module._again, module._plain = again, module.forward
    module.forward = MethodType(forward, module)


def _layer(self: Any, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return self._plain(*args, **kwargs)
    with self._again.keeping():
        return self._plain(*args, **kwargs)


def _norm(self: Any, *args: Any, **kwargs: Any) -> Any:
    if kwargs or len(args) != 1:
        return self._plain(*args, **kwargs)
    return self._again.compute(self._plain, self, *args)


def _gated(self: Any, *args: Any, **kwargs: Any) -> Any:
    if kwargs or len(args) != 1:
        return self._plain(*args, **kwargs)
    gate, up = self.gate_proj(*args), self.up_proj(*args)
    return self.down_proj(self._again.compute(lambda a, b: self.act_fn(a) * b, self.act_fn, gate, up))
