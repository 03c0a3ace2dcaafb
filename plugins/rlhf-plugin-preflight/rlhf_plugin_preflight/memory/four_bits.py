"""Linear layers of 4 bits without values: as many bytes as bitsandbytes keeps, and whole only while they multiply."""

from __future__ import annotations

from typing import Any

import torch

BLOCK = 64
"""Weights that share a scale of 8 bits; 256 scales share one of 32."""


def packed_bytes(weights: int) -> int:
    """Bytes of so many weights in NF4 with doubly quantised scales.

    Example:
        >>> packed_bytes(16384)
        8452
    """
    blocks = -(-weights // BLOCK)
    return -(-weights // 2) + blocks + 4 * -(-blocks // 256)


class _Multiply(torch.autograd.Function):
    """``x W^T``, for which ``W`` is unpacked in forward and in backward, and kept in neither."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, out: int) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.shape = (out, x.shape[-1])
        return torch.nn.functional.linear(x, x.new_empty(ctx.shape))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient @ gradient.new_empty(ctx.shape), None


class FourBitLinear(torch.nn.Linear):
    """In the place of a linear layer."""

    def __init__(self, like: torch.nn.Linear) -> None:
        super().__init__(like.in_features, like.out_features, bias=False, device="meta")
        packed = torch.empty(packed_bytes(like.weight.numel()), dtype=torch.uint8, device="meta")
        self.weight, self.bias = torch.nn.Parameter(packed, requires_grad=False), like.bias

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        result: Any = _Multiply.apply(input, self.out_features)
        return result if self.bias is None else result + self.bias


def dequantized_bytes(layer: Any) -> int:
    """Bytes of a layer's weight as the final model has it: one of 4 bits becomes float32."""
    if isinstance(layer, FourBitLinear):
        return 4 * layer.in_features * layer.out_features
    return layer.weight.numel() * layer.weight.element_size()


def unpacked_sizes(model: Any) -> dict[str, int]:
    """Weights of each parameter by its name: in one of 4 bits they are more than its elements."""
    layers = {f"{n}.weight": m for n, m in model.named_modules() if isinstance(m, FourBitLinear)}
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    return sizes | {name: m.in_features * m.out_features for name, m in layers.items()}


def packed_weights(model: Any) -> list[Any]:
    """Those of 4 bits, which no strategy divides."""
    return [m.weight for m in model.modules() if isinstance(m, FourBitLinear)]


def in_four_bits(model: Any) -> None:
    """Replace linear layers but the head, as transformers does for bitsandbytes."""
    head = model.get_output_embeddings()
    for name, layer in [(n, m) for n, m in model.named_modules() if type(m) is torch.nn.Linear and m is not head]:
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, FourBitLinear(layer))
