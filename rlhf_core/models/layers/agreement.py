"""When two results of one model count as equal but for rounding."""

from __future__ import annotations

import torch

from rlhf_core.models.layers.trunk_and_head import compute_dtype

TOLERANCE = 1e-4
"""Largest relative difference (float32) that still counts as agreement; bfloat16 is given 100 times as much."""


def rounding_tolerance(model: torch.nn.Module) -> float:
    """Largest relative difference allowed between a kernel and its plain equivalent, by the model's number type."""
    return TOLERANCE if compute_dtype(model) == torch.float32 else 100 * TOLERANCE


def agree(got: torch.Tensor, want: torch.Tensor, model: torch.nn.Module) -> bool:
    """Whether two results of one model are the same but for rounding (:func:`rounding_tolerance`)."""
    scale = want.float().abs().max().clamp(min=1e-6)
    return got.shape == want.shape and bool(
        ((got.float() - want.float()).abs().max() / scale) <= rounding_tolerance(model)
    )
