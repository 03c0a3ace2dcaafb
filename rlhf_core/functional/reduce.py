"""From ``loss_BT`` to a number, with a global denominator.

Summed over micro-batches and ranks the results give the exact global value, whatever the split.
"""

from __future__ import annotations

import torch


def masked_sum(values: torch.Tensor, mask: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Sum where the mask is True; values elsewhere do not matter, not even NaN."""
    kept = torch.where(mask.bool(), values, torch.zeros_like(values))
    return kept.sum() if dim is None else kept.sum(dim)


def masked_mean(values: torch.Tensor, mask: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Mean over the places where the mask is True; NaN where there are none, like ``tensor.mean``."""
    count = mask.bool().sum() if dim is None else mask.bool().sum(dim)
    return masked_sum(values, mask, dim) / count


def masked_normalize(values: torch.Tensor, mask: torch.Tensor, constant: float, dim: int | None = None) -> torch.Tensor:
    """Masked sum divided by a constant (Dr. GRPO's length-free normalisation)."""
    return masked_sum(values, mask, dim) / constant


def reduce_loss(loss_BT: torch.Tensor, mask_BT: torch.Tensor, mode: str, denominator: float) -> torch.Tensor:
    """Reduce a micro-batch so that the parts of a batch add up.

    Args:
        loss_BT: unreduced loss, ``[B, T]``.
        mask_BT: which tokens count.
        mode: ``token_mean`` (denominator = tokens of the whole batch), ``sequence_mean`` (denominator =
            sequences of the whole batch; each sequence counts its own mean), ``constant`` (denominator =
            sequences times a fixed length).
        denominator: counted over all micro-batches and ranks.

    Returns:
        Scalar.

    Raises:
        ValueError: unknown mode.
    """
    if mode in ("token_mean", "constant"):
        return masked_sum(loss_BT, mask_BT) / denominator
    if mode == "sequence_mean":
        count_B = mask_BT.bool().sum(-1).clamp(min=1)
        return (masked_sum(loss_BT, mask_BT, dim=-1) / count_B).sum() / denominator
    raise ValueError(f"unknown reduction {mode!r}; one of token_mean, sequence_mean, constant")
