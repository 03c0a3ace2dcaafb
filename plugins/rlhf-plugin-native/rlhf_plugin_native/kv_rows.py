"""Keys and values of sequences that come and go, whose room is used again; ``decode_step.GrowingLayer`` copies
instead."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from rlhf_core.models import on_device
from rlhf_plugin_native.decode_step import BLOCK, GrowingLayer, capacity

AHEAD = 4
"""Room is made for so many times the rows that there are."""


class Moves(NamedTuple):
    """Sequences that stay, each once, and which of them change places; worked out on the host."""

    order: torch.Tensor
    """The sequence that each row holds afterwards."""
    targets: torch.Tensor
    """Rows whose sequence changes."""
    sources: torch.Tensor
    """Where those sequences were."""

    @classmethod
    def of(cls, rows: np.ndarray[Any, np.dtype[np.int64]], device: torch.device) -> Moves:
        """Of the rows that stay, in their new order."""
        targets = np.flatnonzero(rows != np.arange(len(rows)))
        return cls(*(on_device(a, device) for a in (rows, targets, rows[targets])))


class RoomyLayer(GrowingLayer):
    """As :class:`GrowingLayer`; its buffers have room for further rows, and for positions before the first."""

    def __init__(self, layer: GrowingLayer, most_rows: int, most_positions: int | None = None) -> None:
        super().__init__()
        self.buffers, self.length, self.is_initialized = layer.buffers, layer.length, True
        self.rows, self.start = layer.buffers[0].shape[0], 0
        self.most_rows, self.most_positions = most_rows, most_positions
        self._views()

    def _views(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys, self.values = (b[: self.rows, :, self.start : self.start + self.length] for b in self.buffers)
        return self.keys, self.values

    def _move(self, rows: int, spare: int, width: int, last: int, more: int = 1) -> None:
        """New buffers with room, and in them the ``last`` positions of all sequences, behind ``width - last`` zeros."""
        used = [view[:, :, self.length - last :] for view in self._views()]
        positions = BLOCK + capacity(width + more - 1)
        if self.most_positions is not None:
            spare = min(spare, self.most_positions // positions - rows)
        shape = (rows + max(0, spare), used[0].shape[1], positions, used[0].shape[3])
        self.buffers = [view.new_empty(shape) for view in used]
        for buffer, view in zip(self.buffers, used, strict=True):
            buffer[: self.rows, :, BLOCK : BLOCK + width - last] = 0
            buffer[: self.rows, :, BLOCK + width - last : BLOCK + width] = view
        self.start, self.length = BLOCK, width
        self._views()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count = key_states.shape[-2]
        if self.start + self.length + count > self.buffers[0].shape[-2]:
            self._move(self.rows, self.buffers[0].shape[0] - self.rows, self.length, self.length, count)
        first = self.start + self.length
        for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[: self.rows, :, first : first + count] = states
        self.length += count
        return self._views()

    def select(self, indices: torch.Tensor, last: int) -> None:
        """Keep, repeat or reorder sequences, and of the positions only the ``last`` ones; gives room back."""
        self.buffers = [view[:, :, self.length - last :].index_select(0, indices) for view in self._views()]
        self.start, self.length, self.rows = 0, last, len(indices)
        self._views()

    def _trim(self, last: int) -> None:
        self.start, self.length = self.start + self.length - last, last
        self._views()

    def keep(self, moves: Moves, last: int) -> None:
        """As :meth:`select` for rows that stay once, in place: what stays where it is costs nothing."""
        if AHEAD * len(moves.order) < self.buffers[0].shape[0]:
            self.select(moves.order, last)
            return
        self._trim(last)
        if len(moves.targets):
            for view in self._views():
                view[moves.targets] = view[moves.sources]
        self.rows = len(moves.order)
        self._views()

    def join(self, other: GrowingLayer, last: int) -> None:
        """Put another layer's sequences after these, of which the ``last`` positions are kept; all end together."""
        more = [states[:, :, : other.length] for states in other.buffers]
        count, rows = self.rows, self.rows + more[0].shape[0]
        width = max(last, other.length)
        self._trim(last)
        if rows > self.buffers[0].shape[0] or width - last > self.start:
            self._move(rows, min(self.most_rows, AHEAD * rows) - rows, width, last)
        elif width > last:
            before = self.start - (width - last)
            for buffer in self.buffers:
                buffer[:count, :, before : self.start] = 0
            self.start, self.length = before, width
        self.rows = rows
        for view, states in zip(self._views(), more, strict=True):
            view[count:, :, : width - other.length] = 0
            view[count:, :, width - other.length :] = states

    def copy_row(self, row: int, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = (view[row, :, first:last].clone() for view in self._views())
        return keys, values


def make_room(cache: Any, most_rows: int, most_positions: int | None = None) -> None:
    """Let the sequences of a growing cache come and go in place; layers of a model's own stay as they are."""
    cache.layers[:] = [
        RoomyLayer(layer, most_rows, most_positions) if type(layer) is GrowingLayer else layer for layer in cache.layers
    ]


def keep_rows(cache: Any, moves: Moves, last: int) -> int:
    """Keep some sequences once each, and of their positions the ``last`` ones; returns how many positions are left."""
    for layer in cache.layers:
        if isinstance(layer, RoomyLayer):
            layer.keep(moves, last)
        else:
            layer.select(moves.order, last)
    return last


def few_moves(alive: np.ndarray[Any, np.dtype[np.bool_]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Rows that are alive, in an order that fills the places of the others with the last ones."""
    count = int(alive.sum())
    order = np.arange(count)
    order[~alive[:count]] = np.flatnonzero(alive[count:]) + count
    return order
