"""Values of several tensors, brought from their device in one wait."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def read_together(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same values as float64 on the CPU, each in its own shape.

    Args:
        tensors: of floating point, all on one device.

    Example:
        >>> [t.tolist() for t in read_together([torch.ones(2), torch.zeros(1, 2)])]
        [[1.0, 1.0], [[0.0, 0.0]]]
    """
    if not tensors:
        return []
    flat = torch.cat([t.detach().reshape(-1).double() for t in tensors]).cpu()
    parts = flat.split([t.numel() for t in tensors])
    return [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]
