"""Masked sums and reductions whose denominators are global, so micro-batches and ranks add up exactly.

Suffixes: ``_B`` sequences, ``_T`` completion tokens.
"""

from __future__ import annotations

import torch


def masked_sum(values_BT: torch.Tensor, mask_BT: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Sum of ``values`` where ``mask`` is True; masked places may hold anything, NaN included.

    Args:
        values_BT: any shape.
        mask_BT: bool, the same shape.
        dim: sum over this dimension only; None sums everything.

    Returns:
        A scalar, or ``values`` without ``dim``.
    """
    kept = torch.where(mask_BT.bool(), values_BT, values_BT.new_zeros(()))
    return kept.sum() if dim is None else kept.sum(dim)


def mean_or_zero(tensor: torch.Tensor, mask: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Mean where ``mask`` is True, 0 where nothing is: a sequence without tokens adds nothing to a loss."""
    kept = mask.bool()
    return masked_sum(tensor, mask, dim) / (kept.sum() if dim is None else kept.sum(dim)).clamp(min=1)


def reduce_loss(loss_BT: torch.Tensor, mask_BT: torch.Tensor, mode: str, denominator: float) -> torch.Tensor:
    r"""One micro-batch's share of the batch loss.

    ``token_mean`` and ``constant``: :math:`\sum_{b,t} m_{bt} l_{bt} / D`. ``sequence_mean``:
    :math:`\sum_b (\sum_t m_{bt} l_{bt} / \sum_t m_{bt}) / D`. Every sequence lies wholly in one micro-batch, so
    adding the results over micro-batches and ranks is exactly the loss of the whole batch.

    Args:
        loss_BT: unreduced loss, ``[B, T]``.
        mask_BT: bool, True where the token counts.
        mode: ``token_mean`` (DAPO), ``sequence_mean`` (GRPO as published) or ``constant`` (Dr. GRPO).
        denominator: *global*, over all micro-batches and ranks: number of tokens, number of sequences, or
            sequences times the constant C.

    Returns:
        Scalar with gradient.

    Raises:
        ValueError: shapes differ, an unknown mode, or a denominator that is not positive.
    """
    if loss_BT.shape != mask_BT.shape:
        raise ValueError(f"loss_BT is {tuple(loss_BT.shape)} but mask_BT is {tuple(mask_BT.shape)}")
    if not denominator > 0:
        raise ValueError(f"the denominator must be positive, got {denominator}")
    if mode in ("token_mean", "constant"):
        return masked_sum(loss_BT, mask_BT) / denominator
    if mode == "sequence_mean":
        return mean_or_zero(loss_BT, mask_BT, dim=-1).sum() / denominator
    raise ValueError(f"unknown reduction {mode!r}; use token_mean, sequence_mean or constant")
