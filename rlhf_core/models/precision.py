"""Mixed precision: the transformer in 16 bits, everything that decides a probability in float32, for a bfloat16 head
lets sampled and trained log-probabilities drift apart (MiniMax 2025, "MiniMax-M1", section 3.2).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from types import MethodType
from typing import Any, Literal, cast

import torch

from rlhf_core.models.layers.trunk_and_head import base_model, split_lm_head

Precision = Literal["fp32", "bf16", "fp16"]


def set_precision(model: Any, precision: Precision) -> None:
    """Let the model's trunk compute in this precision from now on; a deep copy does too."""
    if precision == "fp32":
        return
    parts = split_lm_head(model)
    owner = base_model(model) if parts is None else parts.trunk
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16

    @functools.wraps(type(owner).forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A sampler opens an autocast around its tokens: there each weight is cast once. An update reads a weight once,
        # and a cache would hold the whole trunk in 16 bits until the forward ends. A CUDA graph casts by itself: other
        # threads' forwards empty the cache.
        device, sampling = next(self.parameters()).device.type, torch.autocast_increment_nesting() > 1
        torch.autocast_decrement_nesting()
        captured = device == "cuda" and torch.cuda.is_current_stream_capturing()
        with torch.autocast(device, dtype, cache_enabled=sampling and not captured):
            out = type(self).forward(self, *args, **kwargs)
        for name in ("last_hidden_state", "logits"):
            if getattr(out, name, None) is not None:
                out[name] = out[name].float()
        return out

    owner.forward = MethodType(forward, owner)  # bound to its module, so that deepcopy binds it to the copy
    owner.compute_dtype = dtype


def computes_in_16_bits(module: torch.nn.Module) -> bool:
    """Whether :func:`set_precision` was told so of a model that lies in this module."""
    return any("compute_dtype" in part.__dict__ for part in module.modules())


def slow_bfloat16(settings: Mapping[str, Any]) -> str:
    """A warning where a run asks for bfloat16 of a processor that multiplies it element by element; else ""."""
    asking = list(_asking_for_bfloat16(settings))
    # absent where torch was built without oneDNN, which needs no warning
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    if not asking or torch.accelerator.is_available() or supported():
        return ""
    return (
        f"{', '.join(asking)}: this processor ({torch.backends.cpu.get_cpu_capability()}) has no instructions for "
        "bfloat16, and torch is many times slower with it than with float32: leave it out, or use a GPU"
    )


def _asking_for_bfloat16(settings: Mapping[str, Any], at: str = "") -> Iterator[str]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _asking_for_bfloat16(cast("Mapping[str, Any]", value), f"{at}{name}.")
        elif value == {"dtype": "bfloat16", "precision": "bf16"}.get(name, ...):
            yield f"{at}{name}={value}"
