"""Masked sums and means of one micro-batch."""

from __future__ import annotations

import torch


def masked_sum(values_BT: torch.Tensor, mask_BT: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Sum of ``values`` where ``mask`` is True; masked places may hold anything, NaN included."""
    masked = torch.where(mask_BT.bool(), values_BT, values_BT.new_zeros(()))
    return masked.sum() if dim is None else masked.sum(dim)


def masked_mean(tensor: torch.Tensor, mask: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Mean of ``tensor`` where ``mask`` is 1 or True; NaN where nothing is, as ``tensor.mean(dim)`` of nothing is.

    Not for losses of several micro-batches: the denominator is local, and a row without tokens makes the loss NaN.
    """
    return masked_sum(tensor, mask, dim) / _count(mask, dim)


def mean_or_zero(tensor: torch.Tensor, mask: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """:func:`masked_mean` with 0 where nothing is: a sequence without tokens adds nothing to a loss."""
    return masked_sum(tensor, mask, dim) / _count(mask, dim).clamp(min=1)


def _count(mask: torch.Tensor, dim: int | None) -> torch.Tensor:
    return mask.bool().sum() if dim is None else mask.bool().sum(dim)


def masked_normalize(
    tensor: torch.Tensor, mask: torch.Tensor, constant_normalizer: float = 1.0, dim: int | None = None
) -> torch.Tensor:
    """Masked sum divided by a constant (the length-free normalisation of Dr. GRPO, Liu et al. 2025)."""
    return masked_sum(tensor, mask, dim) / constant_normalizer
