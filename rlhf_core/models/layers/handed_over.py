"""Numbers of the host on a device, without waiting for what the device still computes."""

from __future__ import annotations

from typing import Any

import torch


def on_device(values: Any, device: torch.device, dtype: torch.dtype = torch.long) -> torch.Tensor:
    """Values of the host as a tensor on a device.

    Args:
        values: whatever ``torch.tensor`` takes.
        device: where the tensor is to be.
        dtype: of the tensor.
    """
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return handed_over(torch.tensor(values, dtype=dtype), device)


def handed_over(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the host on a device.

    A plain copy to CUDA comes from pageable memory and waits until the device has done all that it was given before;
    from pinned memory the copy is one more thing in its queue. Torch keeps the pinned memory until the copy is done.
    """
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
