"""A key-value cache that is written in place instead of being copied at every token."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

BLOCK = 64
"""Positions allocated ahead of need."""


class GrowingLayer(DynamicLayer):
    """Keys and values ``[B, heads, capacity, head_dim]`` of which the first ``length`` positions are used.

    ``self.keys`` and ``self.values`` are always views of the used part, so everything inherited works on them.
    """

    _layer_type = None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.length = 0
        self.buffers: list[torch.Tensor] = []

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any,
               **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Append along the position axis and return views of everything so far."""
        new = (key_states, value_states)
        end = self.length + key_states.shape[-2]
        if not self.buffers or end > self.buffers[0].shape[-2]:
            old = [b[:, :, : self.length] for b in self.buffers]
            self.buffers = [self._allocate(t, t.shape[0], end) for t in new]
            for buffer, used in zip(self.buffers, old):
                buffer[:, :, : self.length] = used
        for buffer, states in zip(self.buffers, new):
            buffer[:, :, self.length : end] = states
        self.length, self.is_initialized = end, True
        return self._views()

    def _allocate(self, like: torch.Tensor, batch: int, needed: int) -> torch.Tensor:
        return like.new_empty((batch, like.shape[1], (needed // BLOCK + 1) * BLOCK, like.shape[-1]))

    def _views(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys, self.values = (b[:, :, : self.length] for b in self.buffers)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Positions held."""
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys to attend to, offset of the first)."""
        return self.length + query_length, 0

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep, repeat or reorder sequences; leaves room for the next positions."""
        selected = [self._allocate(b, len(indices), self.length) for b in self.buffers]
        for new, old in zip(selected, self.buffers):
            torch.index_select(old[:, :, : self.length], 0, indices, out=new[:, :, : self.length])
        self.buffers = selected
        self._views()


def make_cache(config: Any) -> DynamicCache:
    """Return a growing cache where every layer attends to everything, else the one transformers makes."""
    cache = DynamicCache(config=config)
    if cache.layers and all(type(layer) is DynamicLayer for layer in cache.layers):
        cache.layers[:] = [GrowingLayer() for _ in cache.layers]
    return cache
