"""Lets the toolkit's own code run on tensors that have shapes and no values (torch's ``FakeTensorMode``). Code that
asks for a value gets one that changes nothing: a finite number, true, or as many rows as are said to be chosen."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.overrides import TorchFunctionMode


class Unknown(TorchFunctionMode):
    """Answers questions about values; a mask of booleans that indexes a tensor chooses ``rows``."""

    def __init__(self, rows: int = 1) -> None:
        super().__init__()
        self.rows = rows
        self.value = 1.0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function, or say what cannot be known."""
        if func in (torch.Tensor.item, torch.Tensor.__float__):
            return self.value
        if func in (torch.Tensor.__int__, torch.Tensor.__index__):
            return int(self.value)
        if func in (torch.Tensor.__bool__, torch.equal):
            return True
        if func is torch.Tensor.tolist:
            return _filled(tuple(args[0].shape), self.value)
        if func is torch.Tensor.__deepcopy__:
            return _copied(*args)
        if func is torch.Tensor.__getitem__ and isinstance(args[1], torch.Tensor) and args[1].dtype is torch.bool:
            return self._chosen(*args)
        if func is torch.ones and args == ((1, 1, 1, 1),):  # packing's mask, which becomes a subclass: no fake one can
            with unset_fake_temporarily():
                return torch.ones(*args, dtype=torch.bool)
        return func(*args, **(kwargs or {}))

    def _chosen(self, tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Rows that a mask chooses, by an index of as many places, which costs what the mask's own would."""
        flat = tensor.reshape(-1, *tensor.shape[mask.ndim :])
        return flat[torch.zeros(min(self.rows, flat.shape[0]), dtype=torch.long, device=tensor.device)]


def _copied(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """A copy for ``copy.deepcopy``; torch's own gives it a storage that its views do not have."""
    if id(tensor) not in memo:
        new = tensor.detach().clone()
        trained = isinstance(tensor, torch.nn.Parameter)
        memo[id(tensor)] = torch.nn.Parameter(new, requires_grad=tensor.requires_grad) if trained else new
    return memo[id(tensor)]


def _filled(shape: tuple[int, ...], value: float) -> Any:
    return value if not shape else [_filled(shape[1:], value) for _ in range(shape[0])]


@contextmanager
def without_values(rows: int = 1) -> Generator[Unknown, None, None]:
    """Inside, tensors are made without memory, and questions about values are answered by :class:`Unknown`."""
    # modules hold a few real tensors, such as constants of torch's optimizers
    with FakeTensorMode(allow_non_fake_inputs=True), Unknown(rows) as unknown:
        yield unknown
