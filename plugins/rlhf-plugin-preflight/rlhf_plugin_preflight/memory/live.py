"""Counts the bytes of all tensors that are alive, and their peak, by what they are for: a dispatch mode sees every
operation's inputs and outputs; a tensor's memory counts once until its last view is gone. Around a real run it
measures, around :mod:`rlhf_plugin_preflight.memory.unknown` it plans."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

UNNAMED = "activations"
"""Part of every tensor that nobody named."""
OFFLOADED = "offloaded activations"
"""Those that lie in main memory beside a card."""


class LiveBytes(TorchDispatchMode):
    """Bytes of live tensors by part, as they are now and as they were at the peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now: Counter[str] = Counter()
        self.total = self.peak = 0
        self.at_peak: dict[str, int] = {}
        self.at_most: Counter[str] = Counter()
        """The most bytes of each part."""
        self.watch: Callable[[], None] | None = None
        """Called after every operation."""
        self._memories: dict[int, tuple[weakref.ref[Any], str, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, and count what it was given and what it returned."""
        kwargs = kwargs or {}
        self._see(args)
        self._see(kwargs.values())
        out = func(*args, **kwargs)
        self._see((out,))
        if self.total > self.peak:
            self.peak, self.at_peak = self.total, dict(self.now)
        if self.watch is not None:
            self.watch()
        return out

    def name(self, part: str, tensors: Iterable[Any]) -> None:
        """Count these tensors, seen before or not, as this part."""
        for tensor in tensors:
            if tensor is not None:
                self._count(tensor, part)

    def begin(self) -> None:
        """Forget the peak: the next one is of what follows."""
        self.peak, self.at_peak = self.total, dict(self.now)

    def resized(self, memory: torch.UntypedStorage) -> None:
        """Count a storage anew whose size was changed by no operation, as FSDP does with gathered weights."""
        key = id(memory)
        if key not in self._memories:
            return
        _, part, before = self._memories[key]
        self._memories[key] = (self._memories[key][0], part, memory.nbytes())
        self._add(part, memory.nbytes() - before)
        if self.total > self.peak:
            self.peak, self.at_peak = self.total, dict(self.now)

    def _add(self, part: str, size: int) -> None:
        self.now[part] += size
        self.at_most[part] = max(self.at_most[part], self.now[part])
        self.total += size

    def _see(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor):
                self._count(value)
            elif isinstance(value, list | tuple):
                self._see(value)  # pyright: ignore[reportUnknownArgumentType]

    def _count(self, tensor: torch.Tensor, part: str | None = None) -> None:
        if is_traceable_wrapper_subclass(tensor):  # a DTensor, say: its memory is that of what this rank holds of it
            for name in tensor.__tensor_flatten__()[0]:
                if isinstance(inner := getattr(tensor, name), torch.Tensor):  # a DTensor names its mesh, too
                    self._count(inner, part)
            return
        if tensor.device.type == "meta":  # a shape: its storage has a size, and no memory
            return
        memory = _memory(tensor)
        key = id(memory)
        entry = self._memories.get(key)
        size = memory.nbytes() if isinstance(memory, torch.UntypedStorage) else memory.numel() * memory.element_size()
        if entry is not None:
            part = part or entry[1]
            if part == entry[1] and size == entry[2]:
                return
            self._drop(key)
        part = part or UNNAMED
        self._memories[key] = (weakref.ref(memory, lambda _, key=key: self._drop(key)), part, size)
        self._add(part, size)

    def _drop(self, key: int) -> None:
        _, part, size = self._memories.pop(key)
        self._add(part, -size)


def _memory(tensor: torch.Tensor) -> Any:
    """What holds the tensor's numbers: its storage, or where it has none (oneDNN's own layouts) the tensor itself."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return tensor


def tensor_bytes(tensors: Iterable[Any]) -> int:
    return sum(t.numel() * t.element_size() for t in {id(t): t for t in tensors}.values())
