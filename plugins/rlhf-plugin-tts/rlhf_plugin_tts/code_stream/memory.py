"""What a stream of codes keeps while it is sampled: per row, not per token, so that a frame costs one position.

Suffixes: ``_B`` rows, ``_A`` heads, ``_N`` positions of the decoder, ``_D`` head width, ``_H`` hidden,
``_K`` codebooks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

ROOM = 32
"""Positions allocated ahead of need."""


@dataclass(frozen=True)
class RowState:
    """Where each row of the stream stands."""

    hidden_BH: Tensor
    """Of the decoder's last position."""
    frame_BK: Tensor
    """Codes of the step that is being sampled; those not sampled yet mean nothing."""
    place_B: Tensor
    """Number of the last code."""
    ended_B: Tensor
    """Step at which the clip ended; large where it has not."""
    fed_B: Tensor
    """Positions that the decoder has read."""
    known_B: Tensor
    """Positions of the description."""

    def rows(self, indices: Tensor) -> RowState:
        return replace(self, **{f.name: getattr(self, f.name)[indices] for f in fields(self)})

    def join(self, other: RowState) -> RowState:
        return replace(
            self, **{f.name: torch.cat([getattr(self, f.name), getattr(other, f.name)]) for f in fields(self)}
        )


class StreamMemory(DynamicLayer):
    """The one layer of a cache: keys and values of the decoder and of the description, rows aligned at their first
    position."""

    _layer_type = None
    rows_may_enter = True

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length, self.is_initialized = length, True
        self.state: Any = None
        self.decoder: dict[int, list[Tensor]] = {}
        self.about: dict[int, list[Tensor]] = {}
        self.most = 0
        """Positions of the longest row."""

    def fill(self, layer: int, key_BAND: Tensor, value_BAND: Tensor, about: bool = False) -> None:
        (self.about if about else self.decoder)[layer] = [key_BAND, value_BAND]

    def put(self, layer: int, key_BA1D: Tensor, value_BA1D: Tensor) -> tuple[Tensor, Tensor]:
        """Write at each row's next position, which only ``advance`` makes its own; all there are, that one included."""
        rows = torch.arange(len(key_BA1D), device=key_BA1D.device)
        buffers = self.decoder[layer]
        if buffers[0].shape[2] <= self.most:
            buffers[:] = [torch.nn.functional.pad(x, (0, 0, 0, self.most + ROOM - x.shape[2])) for x in buffers]
        for buffer, new in zip(buffers, (key_BA1D, value_BA1D), strict=True):
            buffer[rows, :, self.state.fed_B] = new[:, :, 0].to(buffer.dtype)
        return buffers[0][:, :, : self.most + 1], buffers[1][:, :, : self.most + 1]

    def advance(self, state: RowState, complete: bool) -> None:
        """One token more of each row; ``whole`` where some row's step is."""
        self.state, self.length, self.most = state, self.length + 1, self.most + int(complete)

    def get_seq_length(self) -> int:
        return self.length

    def batch_select_indices(self, indices: Tensor) -> None:
        self.select(indices, self.length)

    def select(self, indices: Tensor, last: int) -> None:
        """Keep, repeat or reorder rows."""
        self.state, self.length = self.state.rows(indices), last
        self.most = int(self.state.fed_B.max())
        for layers, most in ((self.decoder, self.most), (self.about, max(1, int(self.state.known_B.max())))):
            for layer, tensors in layers.items():
                layers[layer] = [x[indices, :, :most] for x in tensors]

    def join(self, other: Any, last: int) -> None:
        self.state, self.length = self.state.join(other.state), max(last, other.length)
        self.most = max(self.most, other.most)
        for layers, more in ((self.decoder, other.decoder), (self.about, other.about)):
            for layer, tensors in layers.items():
                layers[layer] = [_stacked(x, y) for x, y in zip(tensors, more[layer], strict=True)]

    def copy_row(self, row: int, first: int, last: int) -> Any:
        """Not for episodes: a row cannot be cut."""
        raise NotImplementedError("models of several codebooks are sampled turn by turn in one batch only")

    def lay(self, rows: Sequence[Any]) -> None:
        self.copy_row(0, 0, 0)


def _stacked(x_BAND: Tensor, y_BAND: Tensor) -> Tensor:
    """Rows of both, zeros after the shorter ones."""
    most = max(x_BAND.shape[2], y_BAND.shape[2])
    return torch.cat([torch.nn.functional.pad(x, (0, 0, 0, most - x.shape[2])) for x in (x_BAND, y_BAND)])


class Written:
    """A :class:`StreamMemory` as the layers of transformers ask their cache."""

    def __init__(self, memory: StreamMemory, prompts: bool) -> None:
        self.memory, self.prompts = memory, prompts
        self.cross_attention_cache = self
        self.is_updated: dict[int, bool] = {} if prompts else dict.fromkeys(memory.about, True)
        self.layers = {n: _KeysValues(*pair) for n, pair in memory.about.items()}
        self.decoder_layers: set[int] = set()

    def update(self, key: Tensor, value: Tensor, layer: int, **unused: Any) -> tuple[Tensor, Tensor]:
        """A layer's own keys and values come first, then those of what it attends to."""
        if not self.prompts:
            return self.memory.put(layer, key, value)
        self.memory.fill(layer, key, value, about=layer in self.decoder_layers)
        self.decoder_layers.add(layer)
        return key, value


@dataclass(frozen=True)
class _KeysValues:
    keys: Tensor
    values: Tensor
