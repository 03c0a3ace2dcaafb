"""A model's own decoding step as one CUDA graph: the host starts it once a token, instead of some hundred kernels.

A graph reads and writes the memory that it was captured with. It is captured anew when the cache has moved: to make
room for more positions, and when rows leave or enter.

Suffixes as in :mod:`~rlhf_plugin_native.decode_step`; ``_C`` positions that the cache has room for.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import threading
import weakref
from collections.abc import Generator
from typing import Any

import torch

from rlhf_core.models import split_lm_head
from rlhf_plugin_native.decode_step import UNSUPPORTED, GrowingLayer, accepts_4d_masks, agrees, make_cache, plain_step

log = logging.getLogger(__name__)
_agrees: weakref.WeakKeyDictionary[torch.nn.Module, bool] = weakref.WeakKeyDictionary()


def captured_step(model: Any) -> CapturedStep | None:
    """A step of this model on its card; None, with a warning, of a model whose graph computes something else than
    its forward, or that cannot be captured, and while rows are sampled ahead in another thread.
    """
    if _agrees.get(model) is False:
        return None
    if threading.current_thread() is not threading.main_thread():
        log.warning("rollout.compile has no effect on a card where rollouts are sampled ahead")
        return None
    try:
        step = CapturedStep(model, tried=model in _agrees)
        if model not in _agrees:
            assert agrees(model, step, tokens=4), "its graph computes something else"
            _agrees[model] = True
    except UNSUPPORTED as error:
        _agrees[model] = False
        log.warning("rollout.compile has no effect on %s: %s", type(model).__name__, error)
        return None
    return step


@functools.cache
def _stream(device: torch.device) -> Any:
    """Where graphs are captured: one, since each keeps a workspace for products."""
    return torch.cuda.Stream(device)


@contextlib.contextmanager
def _no_waits() -> Generator[None, None, None]:
    """Refuse what waits for the card: a capture that it ends leaves torch's memory in disorder."""
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


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


class CapturedStep:
    """Called as a forward of one token per row. The first step after the cache has moved runs as it is; the next one
    is captured, and repeated until the cache moves again.

    Args:
        tried: whether a step of this model is known to run without a wait for the card.
    """

    def __init__(self, model: Any, *, tried: bool = False) -> None:
        parts = split_lm_head(model, linear=True)
        assert parts is not None, "its logits are not those of its head alone"
        self.model, self.parts, self.trunk, self.tried = model, parts, parts.trunk, tried
        self.held: list[weakref.ref[torch.Tensor]] = []
        """The cache's buffers as the last step left them; whoever moves it may free them."""
        self.graph: Any = None
        self.is_current = False

    def __call__(
        self, ids_B1: torch.Tensor, mask_BK: torch.Tensor | None, positions_B1: torch.Tensor, cache: Any
    ) -> torch.Tensor:
        """Logits ``[B, V]``, which the next step overwrites; arguments as those of :func:`plain_step`."""
        layers, length = cache.layers, cache.get_seq_length()
        if length < layers[0].buffers[0].shape[2] and self._stayed(layers):
            if not self.is_current:
                self._capture(ids_B1, positions_B1, length, layers)
            return self._repeat(ids_B1, mask_BK, positions_B1, length, layers)
        self.is_current = False
        logits_BV = plain_step(self.model, self.parts, ids_B1, mask_BK, positions_B1, cache)
        self.held = [weakref.ref(buffer) for layer in layers for buffer in layer.buffers]
        return logits_BV

    def _stayed(self, layers: Any) -> bool:
        buffers = [buffer for layer in layers for buffer in layer.buffers]
        return all(ref is not None and ref() is now for ref, now in itertools.zip_longest(self.held, buffers))

    def _capture(self, ids_B1: torch.Tensor, positions_B1: torch.Tensor, length: int, layers: Any) -> None:
        rows, _, room, _ = layers[0].buffers[0].shape
        self.ids_B1, self.positions_B1 = ids_B1.clone(), positions_B1.clone()
        self.mask_BC = torch.zeros((rows, room), dtype=torch.bool, device=ids_B1.device)
        self.mask_BC[:, : length + 1] = True
        self.slot_1 = torch.full((1,), length, device=ids_B1.device)
        for buffer in (buffer for layer in layers for buffer in layer.buffers):
            buffer[:, :, length:] = 0  # hidden, but what is not a number would show through
        cache = make_cache(self.trunk.config)
        cache.layers[:] = [FixedLayer(layer.buffers, self.slot_1) for layer in layers]
        assert accepts_4d_masks(self.trunk, cache), "its attention makes its masks by itself"
        step = functools.partial(
            plain_step, self.model, self.parts, self.ids_B1, self.mask_BC, self.positions_B1, cache
        )
        if not self.tried:
            with _no_waits():
                step()
            self.tried = True
        graph, stream, here = torch.cuda.CUDAGraph(), _stream(ids_B1.device), torch.cuda.current_stream()
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            # Not torch.cuda.graph, which waits for the card. A pool is there as long as a graph that uses it.
            graph.capture_begin(pool=self.graph and self.graph.pool(), capture_error_mode="thread_local")
            try:
                self.logits_BV = step()
            finally:
                graph.capture_end()
        here.wait_stream(stream)
        self.graph, self.is_current = graph, True

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
