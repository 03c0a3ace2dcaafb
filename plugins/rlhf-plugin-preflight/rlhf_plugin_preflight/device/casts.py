"""How many bytes of weights an update in 16 bits holds twice."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlhf_core.distributed import decoder_layers
from rlhf_core.models import ModelConfig, load_policy
from rlhf_plugin_preflight.device.forwards import forward_and_backward, placed, random_samples
from rlhf_plugin_preflight.device.report import Comparison

HALF = (torch.bfloat16, torch.float16)


class Casts(TorchDispatchMode):
    """Counts casts of a model's matrices to 16 bits, and the bytes of those that are alive.

    They are known by their shapes: a strategy that divides weights hands on tensors that are no parameters.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.shapes = {p.shape for p in model.parameters() if p.ndim > 1}
        self.count, self.alive, self.most = 0, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        cast = func in (torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype) and out.dtype in HALF
        if cast and args[0].dtype == torch.float32 and out.shape in self.shapes:
            self.count, self.alive = self.count + 1, self.alive + out.nbytes
            self.most = max(self.most, self.alive)
            weakref.finalize(out.untyped_storage(), self._gone, out.nbytes)
        return out

    def _gone(self, size: int) -> None:
        self.alive -= size


def compare_casts(path: str, device: torch.device) -> Iterator[Comparison]:
    """An update with activation checkpointing holds the weights of one layer in bfloat16 at most."""
    loaded = load_policy(ModelConfig(path=path, gradient_checkpointing=True))
    model = placed(loaded, device, "bf16")
    layer = max(largest(part) for part in decoder_layers(model))
    with Casts(model) as casts:
        forward_and_backward(model, random_samples(loaded))
    kept = f"{casts.most / 1e6:.3g} MB of weights in bfloat16 at once, a layer has {layer / 1e6:.3g} MB"
    agrees = casts.count > 0 and casts.most <= layer  # none seen says nothing
    yield Comparison("update bf16, checkpointing: casts", "agrees" if agrees else "differs", kept)


def largest(layer: torch.nn.Module) -> int:
    """Bytes of a layer's matrices in 16 bits."""
    return sum(2 * p.numel() for p in layer.parameters() if p.ndim > 1)
