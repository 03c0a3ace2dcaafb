"""A key-value cache that is written in place instead of being copied at every token.

The plain equivalent is ``transformers.DynamicCache``, which holds the same and concatenates at every token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

BLOCK = 64
"""Positions allocated ahead of need."""


class GrowingLayer(DynamicLayer):
    """Keys and values ``[B, heads, capacity, head_dim]`` of which the first ``length`` positions are used.

    ``self.keys`` and ``self.values`` are always views of the used part, so everything inherited works on them.
    """

    _layer_type = None
    rows_may_enter = True
    """That sequences can be joined to it; a model's own cache layers that have ``select`` and ``join`` say it, too."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.length = 0
        self.buffers: list[torch.Tensor] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
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
        self.select(indices, self.length)

    def select(self, indices: torch.Tensor, last: int) -> None:
        """Keep, repeat or reorder sequences, and of the positions only the ``last`` ones."""
        selected = [self._allocate(b, len(indices), last) for b in self.buffers]
        for new, old in zip(selected, self.buffers):
            torch.index_select(old[:, :, self.length - last : self.length], 0, indices, out=new[:, :, :last])
        self.buffers, self.length = selected, last
        self._views()

    def cast(self, dtype: torch.dtype) -> None:
        """Hold keys and values in this number type from now on."""
        if any(b.dtype != dtype for b in self.buffers):
            self.buffers = [b.to(dtype) for b in self.buffers]
            self._views()

    def join(self, other: GrowingLayer, last: int) -> None:
        """Put another layer's sequences after these, of which the ``last`` positions are kept; all end together.

        What comes before the shorter ones is zero, and for the attention mask to hide.
        """
        width, count = max(last, other.length), self.buffers[0].shape[0]
        joined = [self._allocate(b, count + other.buffers[0].shape[0], width) for b in self.buffers]
        for new, first, second in zip(joined, self.buffers, other.buffers):
            new[:count, :, : width - last] = 0
            new[:count, :, width - last : width] = first[:, :, self.length - last : self.length]
            new[count:, :, : width - other.length] = 0
            new[count:, :, width - other.length : width] = second[:, :, : other.length]
        self.buffers, self.length = joined, width
        self._views()

    def copy_row(self, row: int, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``[heads, last - first, head_dim]`` of one sequence."""
        keys, values = (b[row, :, first:last].clone() for b in self.buffers)
        return keys, values

    def lay(self, rows: Sequence[Sequence[torch.Tensor]]) -> None:
        """Begin with these sequences, side by side; zeros are before the shorter ones."""
        width = max(row[0].shape[-2] for row in rows)
        self.buffers = [self._allocate(t[None], len(rows), width) for t in rows[0]]
        self.length, self.is_initialized = width, True
        for i, row in enumerate(rows):
            for buffer, states in zip(self.buffers, row, strict=True):
                buffer[i, :, : width - states.shape[-2]] = 0
                buffer[i, :, width - states.shape[-2] : width] = states
        self._views()


Kept = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of one sequence outside of any batch, layer by layer ``[heads, positions, head_dim]``."""


def copy_row(cache: Any, row: int, first: int, last: int) -> Kept:
    """One sequence's positions ``first`` to ``last``; the cache must be growing."""
    return [layer.copy_row(row, first, last) for layer in cache.layers]


def lay_rows(cache: Any, rows: Sequence[Kept]) -> None:
    """Fill an empty growing cache with kept sequences."""
    for n, layer in enumerate(cache.layers):
        layer.lay([row[n] for row in rows])


def growing(cache: Any) -> bool:
    """Whether sequences can enter the cache while others are in it."""
    return all(getattr(layer, "rows_may_enter", False) for layer in cache.layers)


def recurrent_only(cache: Any) -> bool:
    """Whether no layer has keys and values."""
    return not any(isinstance(layer, CacheLayerMixin) for layer in cache.layers)


def select_sequences(cache: Any, indices: torch.Tensor) -> None:
    """Keep, repeat or reorder sequences, in recurrent states too."""
    for layer in cache.layers:
        if hasattr(layer, "recurrent_states"):  # its batch_select_indices is missing, or forgets the state
            layer.reorder_cache(indices)
        else:
            layer.batch_select_indices(indices)


def select_rows(cache: Any, indices: torch.Tensor, last: int) -> int:
    """Keep some sequences and, where possible, only the ``last`` positions; returns how many positions are left."""
    if not growing(cache):
        select_sequences(cache, indices)
        return cache.get_seq_length()
    for layer in cache.layers:
        layer.select(indices, last)
    return last


def join_caches(cache: Any, other: Any, last: int) -> int:
    """Put the other cache's sequences after these; returns the positions there are now. Both must be growing."""
    for layer, other_layer in zip(cache.layers, other.layers, strict=True):
        layer.join(other_layer, last)
    return cache.layers[0].length


def make_cache(config: Any) -> DynamicCache:
    """Return a growing cache where every layer attends to all positions, else the one that transformers makes."""
    cache = DynamicCache(config=config)
    if cache.layers and all(type(layer) is DynamicLayer for layer in cache.layers):
        cache.layers[:] = [GrowingLayer() for _ in cache.layers]
    return cache
