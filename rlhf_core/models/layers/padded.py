"""Token ids on their device, and one right-padded forward: the plain equivalent of packing and prefix sharing.

Right padding needs no attention mask in a causal model: no real token ever looks to its right. That keeps the
fastest attention kernel, and no length is inferred from an id.

Suffixes: ``_B`` sequences, ``_L`` positions, ``_N`` completion tokens of all rows, flat, ``_H`` hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rlhf_core.models.layers.trunk_and_head import base_model, trunk_and_head


def on_device(values: Any, device: torch.device, dtype: torch.dtype = torch.long) -> torch.Tensor:
    """Values of the host as a tensor on a device.

    Args:
        values: whatever ``torch.tensor`` takes.
        device: where the tensor is to be.
        dtype: of the tensor.
    """
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return to_device_async(torch.tensor(values, dtype=dtype), device)


def to_device_async(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the host on a device.

    A plain copy to CUDA comes from pageable memory and waits until the device has done all that it was given before;
    from pinned memory the copy is one more thing in its queue. Torch keeps the pinned memory until the copy is done.
    """
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def fetch_to_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same values as float64 on the CPU, each in its own shape.

    Args:
        tensors: of floating point, all on one device.

    Example:
        >>> [t.tolist() for t in fetch_to_host([torch.ones(2), torch.zeros(1, 2)])]
        [[1.0, 1.0], [[0.0, 0.0]]]
    """
    if not tensors:
        return []
    flat = torch.cat([t.detach().reshape(-1).double() for t in tensors]).cpu()
    parts = flat.split([t.numel() for t in tensors])
    return [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]


Ids = Sequence[Sequence[int]]


def pad_right(rows: Ids, device: torch.device) -> torch.Tensor:
    """Return ``ids_BL``; the filler 0 is an arbitrary valid id that nothing looks at."""
    width = max(1, max(map(len, rows)))
    return on_device([[*row, *[0] * (width - len(row))] for row in rows], device)


def pad_rows(rows: Ids, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-pad; return ``(ids_BL, mask_BL)``, the mask int64 and made from the lengths."""
    ids_BL = pad_right(rows, device)
    sizes_B = on_device([len(row) for row in rows], device)
    return ids_BL, (torch.arange(ids_BL.shape[1], device=device)[None, :] < sizes_B[:, None]).long()


def row_places(sizes: Sequence[int], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``(row_N, column_N)`` of the values of right-padded rows of these sizes, row after row.

    They come from the sizes on the host: for the places of a mask a device would have to be waited for.
    """
    pairs = [(b, t) for b, size in enumerate(sizes) for t in range(size)]
    table = on_device(pairs, device).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def pad_values(values_N: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Lay values, row after row, into ``[len(sizes), max(sizes)]``, zeros elsewhere; with gradient.

    Raises:
        ValueError: other than ``sum(sizes)`` values; a single one would be laid everywhere.
    """
    if values_N.shape != (sum(sizes),):
        raise ValueError(f"values of shape {tuple(values_N.shape)} for rows of {sum(sizes)}")
    empty_BT = values_N.new_zeros((len(sizes), max(sizes)))
    return empty_BT.index_put(row_places(sizes, values_N.device), values_N)


def predicting(prompts: Ids, completions: Ids, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``(row_N, position_N)`` of the positions whose output predicts each completion token."""
    pairs = [
        (b, len(p) - 1 + t) for b, (p, c) in enumerate(zip(prompts, completions, strict=True)) for t in range(len(c))
    ]
    table = on_device(pairs, device).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _inputs(prompts: Ids, completions: Ids) -> list[list[int]]:
    """Prompt and completion, less the last token, whose output predicts nothing."""
    return [[*p, *c[:-1]] for p, c in zip(prompts, completions, strict=True)]


def padded_hidden(model: torch.nn.Module, prompts: Ids, completions: Ids) -> torch.Tensor:
    """Return ``hidden_NH`` for every completion token, row after row, with gradient."""
    device = next(model.parameters()).device
    ids_BL = pad_right(_inputs(prompts, completions), device)
    hidden_BLH = trunk_and_head(model).trunk(input_ids=ids_BL, use_cache=False).last_hidden_state
    return hidden_BLH[predicting(prompts, completions, device)]


def padded_logits(model: torch.nn.Module, prompts: Ids, completions: Ids) -> torch.Tensor:
    """Return ``logits_NV`` from the model's own forward, for models that do not split."""
    device = next(model.parameters()).device
    rows, positions = predicting(prompts, completions, device)
    logits_BLV = base_model(model)(input_ids=pad_right(_inputs(prompts, completions), device), use_cache=False).logits
    return logits_BLV[rows, positions]
