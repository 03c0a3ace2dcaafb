"""A model's own decoding step as one CUDA graph: the host starts it once a token, instead of some hundred kernels.

A graph reads and writes the memory that it was captured with. It is captured anew when the cache has moved: every
block of positions, and when rows leave or enter.

Suffixes as in :mod:`~rlhf_plugin_native.decode_step`; ``_C`` positions that the cache has room for.
"""

from __future__ import annotations

import logging
import weakref
from typing import Any

import torch

from rlhf_core.models import split_lm_head
from rlhf_plugin_native.decode_step import UNSUPPORTED, GrowingLayer, accepts_4d_masks, agrees, make_cache, plain_step

log = logging.getLogger(__name__)
_agrees: weakref.WeakKeyDictionary[torch.nn.Module, bool] = weakref.WeakKeyDictionary()


def captured_step(model: Any) -> CapturedStep | None:
    """A step of this model on its card; None, with a warning, of a model whose graph computes something else than
    its forward, or that cannot be captured.
    """
    if _agrees.get(model) is False:
        return None
    try:
        step = CapturedStep(model)
        if model not in _agrees:
            assert agrees(model, step, tokens=4), "its graph computes something else"
            _agrees[model] = True
    except UNSUPPORTED as error:
        _agrees[model] = False
        log.warning("rollout.compile has no effect on %s: %s", type(model).__name__, error)
        return None
    return step


class FixedLayer(GrowingLayer):
    """The buffers of a cache's layer, all of whose positions are seen; new states go where ``slot_1`` says."""

    def __init__(self, buffers: list[torch.Tensor], slot_1: torch.Tensor) -> None:
        super().__init__()
        self.buffers, self.slot_1 = buffers, slot_1
        self.length, self.is_initialized = buffers[0].shape[2] - 1, True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
            buffer.index_copy_(2, self.slot_1, states.to(buffer.dtype))
        return self.buffers[0], self.buffers[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0


class CapturedStep:
    """Called as a forward of one token per row. The first step after the cache has moved runs as it is; the next one
    is captured, and repeated until the cache moves again.
    """

    def __init__(self, model: Any) -> None:
        parts = split_lm_head(model)
        assert parts is not None, "its head cannot be told from its layers"
        self.model, self.parts, self.trunk = model, parts, parts.trunk
        self.pool = torch.cuda.graph_pool_handle()
        self.buffers: list[list[torch.Tensor]] = []
        """Of each layer, as the last step left them."""
        self.graph: Any = None

    def __call__(
        self, ids_B1: torch.Tensor, mask_BK: torch.Tensor | None, positions_B1: torch.Tensor, cache: Any
    ) -> torch.Tensor:
        """Logits ``[B, V]``, which the next step overwrites; arguments as those of :func:`plain_step`."""
        layers, length = cache.layers, cache.get_seq_length()
        stayed = len(layers) == len(self.buffers) and all(a.buffers is b for a, b in zip(layers, self.buffers))
        if stayed and length < self.buffers[0][0].shape[2]:
            if self.graph is None:
                self._capture(ids_B1, positions_B1, length)
            return self._repeat(ids_B1, mask_BK, positions_B1, length, layers)
        self.graph, self.buffers = None, []  # where the cache moves, the old one is free
        logits_BV = plain_step(self.model, self.parts, ids_B1, mask_BK, positions_B1, cache)
        self.buffers = [layer.buffers for layer in layers]
        return logits_BV

    def _capture(self, ids_B1: torch.Tensor, positions_B1: torch.Tensor, length: int) -> None:
        rows, _, room, _ = self.buffers[0][0].shape
        self.ids_B1, self.positions_B1 = ids_B1.clone(), positions_B1.clone()
        self.mask_BC = torch.zeros((rows, room), dtype=torch.bool, device=ids_B1.device)
        self.slot_1 = torch.zeros(1, dtype=torch.long, device=ids_B1.device)
        for buffer in (buffer for layer in self.buffers for buffer in layer):
            buffer[:, :, length:] = 0  # hidden, but what is not a number would show through
        cache = make_cache(self.trunk.config)
        cache.layers[:] = [FixedLayer(buffers, self.slot_1) for buffers in self.buffers]
        assert accepts_4d_masks(self.trunk, cache), "its attention makes its masks by itself"
        self.graph, stream, here = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            # Not torch.cuda.graph, which waits for the card; other threads may go on with theirs.
            self.graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                arguments = (self.ids_B1, self.mask_BC, self.positions_B1, cache)
                self.logits_BV = plain_step(self.model, self.parts, *arguments)
            finally:
                self.graph.capture_end()
        here.wait_stream(stream)

    def _repeat(
        self, ids_B1: torch.Tensor, mask_BK: torch.Tensor | None, positions_B1: torch.Tensor, length: int, layers: Any
    ) -> torch.Tensor:
        self.ids_B1.copy_(ids_B1)
        self.positions_B1.copy_(positions_B1)
        self.mask_BC[:, : length + 1] = True if mask_BK is None else mask_BK
        self.slot_1.fill_(length)
        self.graph.replay()
        for layer in layers:
            layer.length = length + 1
            layer._views()
        return self.logits_BV
