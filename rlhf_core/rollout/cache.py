"""A key-value cache that grows in place instead of being copied at every token."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

BLOCK = 64


class GrowingLayer(DynamicLayer):
    """Keys and values ``[B, heads, capacity, head_dim]`` of which the first ``length`` are used."""

    _layer_type = None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.length = 0
        self.buffers: list[torch.Tensor] = []

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Append and return views of everything so far."""
        end = self.length + key_states.shape[-2]
        if not self.buffers or end > self.buffers[0].shape[-2]:
            self._grow((key_states, value_states), end)
        for buffer, new in zip(self.buffers, (key_states, value_states)):
            buffer[:, :, self.length : end] = new
        self.length = end
        return self._views()

    def _views(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys, self.values = (b[:, :, : self.length] for b in self.buffers)
        return self.keys, self.values

    def _grow(self, like: tuple[torch.Tensor, torch.Tensor], needed: int) -> None:
        capacity = -(-needed // BLOCK) * BLOCK
        fresh = [t.new_empty((*t.shape[:2], capacity, t.shape[-1])) for t in like]
        for new, old in zip(fresh, self.buffers):
            new[:, :, : self.length] = old[:, :, : self.length]
        self.buffers, self.is_initialized = fresh, True

    def get_seq_length(self) -> int:
        """Tokens held."""
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys to attend to, offset)."""
        return self.length + query_length, 0

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep, repeat or reorder sequences."""
        self.buffers = [b[:, :, : self.length].index_select(0, indices) for b in self.buffers]
        self._views()


def make_cache(config: Any) -> DynamicCache:
    """A growing cache where every layer attends to everything, else transformers' own."""
    cache = DynamicCache(config=config)
    if cache.layers and all(type(layer) is DynamicLayer for layer in cache.layers):
        cache.layers = [GrowingLayer() for _ in cache.layers]
    return cache
