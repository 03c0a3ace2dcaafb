"""One decoding step of a Llama-like model without what transformers does around it: CPU only.

Weights are copied once per call of the engine into the layout that oneDNN multiplies fastest (about the time of four
steps, and the model's size in memory), and heads that share keys are one query of several rows. A model whose layers
have the usual parts is *tried* against its own forward; one that does not agree is decoded by transformers.

Suffixes: ``_B`` rows, ``_H`` hidden, ``_K`` key-value heads, ``_G`` query heads per key-value head, ``_D`` head width,
``_L`` positions, ``_V`` vocabulary.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from rlhf_core.models import on_device, split_lm_head
from rlhf_core.models.layers.trunk_and_head import (
    WITHOUT_TEXT,
    TrunkAndHead,
    agree,
    base_model,
    cache_argument,
    compute_dtype,
    masked_bias,
)

BLOCK = 64
"""Positions are allocated in blocks."""


def capacity(positions: int) -> int:
    """Positions to allocate for so many: up to the next block, and beyond 512 an eighth more, so that a long completion
    moves its cache a few times instead of once a block."""
    return (positions // BLOCK + 1 + positions // (8 * BLOCK)) * BLOCK


class GrowingLayer(DynamicLayer):
    """Keys and values ``[B, heads, capacity, head_dim]``; ``self.keys`` and ``self.values`` view the used part."""

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
        return like.new_empty((batch, like.shape[1], capacity(needed), like.shape[-1]))

    def _views(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys, self.values = (b[:, :, : self.length] for b in self.buffers)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys to attend to, offset of the first)."""
        return self.length + query_length, 0

    def batch_select_indices(self, indices: torch.Tensor) -> None:
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
        """Put another layer's sequences after these, of which the ``last`` positions stay; shorter ones get zeros."""
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


def growing(cache: Any) -> bool:
    """Whether sequences can enter the cache while others are in it."""
    return all(getattr(layer, "rows_may_enter", False) for layer in cache.layers)


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


log = logging.getLogger(__name__)
WORTH_TOKENS = 16
"""Completions that may get at least so many tokens pay for the copy of the weights."""
UNSUPPORTED = (AttributeError, TypeError, ValueError, RuntimeError, AssertionError)
"""What trying a model with other layers may raise."""

_agrees: weakref.WeakKeyDictionary[torch.nn.Module, bool] = weakref.WeakKeyDictionary()


class Linear(NamedTuple):
    """Weight and bias of a layer with its adapters."""

    weight_OH: torch.Tensor
    bias_O: torch.Tensor | None

    def __call__(self, x_H: torch.Tensor) -> torch.Tensor:
        """Of ``x_H`` in the weight's type; summed in float32, as a matrix product is."""
        sums_O = (self.weight_OH.float() * x_H.float()).sum(-1)
        return (sums_O if self.bias_O is None else sums_O + self.bias_O).to(self.weight_OH.dtype)


class BlockedLinear:
    """Linear layers side by side, in oneDNN's layout."""

    def __init__(self, *layers: Any, dtype: torch.dtype) -> None:
        parts = [linear(layer, dtype) for layer in layers]
        biases = [part.bias_O for part in parts if part.bias_O is not None]
        assert len(biases) in (0, len(parts)), "some of its projections have biases, others not"
        self.bias = torch.cat(biases) if biases else None
        self.inputs, self.dtype = parts[0].weight_OH.shape[1], dtype
        self.weight = torch.ops.mkldnn._reorder_linear_weight(torch.cat([part.weight_OH for part in parts]))

    def __call__(self, x_BH: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise.default(x_BH.to(self.dtype), self.weight, self.bias, "none", [], "")


def linear(layer: Any, dtype: torch.dtype) -> Linear:
    """Its weights as they are; a copy only where they have to be computed or cast."""
    base = layer.get_base_layer() if hasattr(layer, "get_base_layer") else layer
    assert type(base) is torch.nn.Linear, "not a plain linear layer"
    weight_OH, bias_O = base.weight, masked_bias(base) if WITHOUT_TEXT in base._buffers else base.bias
    if base is not layer and not (layer.disable_adapters or layer.merged):
        weight_OH = weight_OH + sum(layer.get_delta_weight(name) for name in layer.active_adapters)
    return Linear(weight_OH.detach().to(dtype), None if bias_O is None else bias_O.detach().to(dtype))


def decode_step(model: Any) -> DecodeStep | None:
    """A fast step with the model's present weights; None where there is none or it differs from :func:`plain_step`."""
    base = base_model(model)
    device = next(model.parameters()).device
    if device.type != "cpu" or not torch.backends.mkldnn.is_available() or _agrees.get(base) is False:
        return None
    try:
        if split_lm_head(model, linear=True) is None:
            return None
        step = DecodeStep(model)
        if base is not model or base not in _agrees:
            _agrees[base] = agrees(model, step)
    except UNSUPPORTED as error:
        log.info("%s is decoded by transformers: %s", type(base).__name__, error)
        _agrees[base] = False
        return None
    return step if _agrees[base] else None


def plain_step(
    model: Any,
    parts: TrunkAndHead | None,
    ids_BL: torch.Tensor,
    mask_BK: torch.Tensor | None,
    positions_BL: torch.Tensor,
    cache: Any,
) -> torch.Tensor:
    """The model's own forward on a cache, of any length L >= 1: logits ``[B, V]`` after the last position. ``mask_BK``
    is 0 where a position is hidden; without ``parts`` the head sees every position."""
    owner = base_model(model) if parts is None else parts.trunk
    argument = cache_argument(owner)
    recurrent = not any(isinstance(layer, CacheLayerMixin) for layer in cache.layers)
    if recurrent and mask_BK is not None and mask_BK.shape[1] > ids_BL.shape[1]:
        mask_BK = None  # recurrent layers read a mask of the new tokens, and none of these is hidden
    elif mask_BK is not None and mask_BK.device.type != "cpu" and accepts_4d_masks(owner, cache):
        mask_BK = attention_mask_4d(mask_BK, ids_BL.shape[1])
    inputs = {
        "input_ids": ids_BL,
        "attention_mask": mask_BK,
        "position_ids": positions_BL,
        **({argument: cache} if argument else {}),
        "use_cache": True,
    }
    if parts is not None:
        return parts.head(parts.trunk(**inputs).last_hidden_state[:, -1])
    return model(**inputs).logits[:, -1]


def attention_mask_4d(mask_BK: torch.Tensor, length: int) -> torch.Tensor:
    """Bool ``[B, 1, length, K]``, what each of the last ``length`` positions sees: as transformers makes it of
    ``mask_BK``, whose values it reads first, and so waits for the device at every token."""
    causal_LK = torch.ones((length, mask_BK.shape[1]), dtype=torch.bool, device=mask_BK.device)
    return causal_LK.tril(mask_BK.shape[1] - length) & mask_BK.bool()[:, None, None, :]


def accepts_4d_masks(trunk: Any, cache: Any) -> bool:
    """Whether every layer attends to all positions, which rotary embeddings alone tell apart, by torch's attention."""
    config = trunk.config
    rotary = hasattr(trunk, "rotary_emb") and not getattr(config, "alibi", False)
    return rotary and growing(cache) and config._attn_implementation in ("sdpa", "rlhf_packed")


def agrees(model: Any, step: Any, rows: int = 2, times: float = 1.0, tokens: int = 1) -> bool:
    """``tokens`` steps after two short prompts of different length, or after the longer, against the model's own."""
    parts = split_lm_head(model)
    assert parts is not None
    vocabulary, device = int(step.trunk.config.get_text_config().vocab_size), next(model.parameters()).device
    ids_BL = on_device([[3, 1, 4, 1, 5], [0, 0, 5, 7, 11]][:rows], device) % vocabulary
    mask_BL = on_device([[1] * (5 + tokens), [0, 0] + [1] * (3 + tokens)][:rows], device)

    def run(one_step: Callable[..., torch.Tensor]) -> torch.Tensor:
        cache = make_cache(step.trunk.config)
        assert growing(cache), "its layers do not attend to everything"
        positions_BL = (mask_BL.cumsum(-1) - 1).clamp(min=0)
        plain_step(model, parts, ids_BL, mask_BL[:, :5], positions_BL[:, :5], cache)
        logits = [
            one_step(
                ids_BL[:, (at - 3) % 5, None],
                mask_BL[:, : at + 1] if rows > 1 else None,
                positions_BL[:, at : at + 1],
                cache,
            ).clone()
            for at in range(5, 5 + tokens)
        ]
        return torch.stack(logits)

    want, got = run(partial(plain_step, model, parts)), run(step)
    return agree(got, want, model, times)


@dataclass(frozen=True)
class Layer:
    norm_attention: Any
    qkv: BlockedLinear
    out: BlockedLinear
    norm_mlp: Any
    gate_up: BlockedLinear
    down: BlockedLinear
    act: Any
    scale: float
    head_dim: int


class DecodeStep:
    """The weights of a model as they were when this was made; called as a forward of one token per row."""

    def __init__(self, model: Any) -> None:
        parts = split_lm_head(model)
        assert parts is not None
        self.trunk = parts.trunk
        self.dtype = compute_dtype(model)
        self.layers = [_layer(layer, self.dtype) for layer in self.trunk.layers]
        self.head = BlockedLinear(parts.head, dtype=parts.head.weight.dtype)
        self.attend: Callable[..., torch.Tensor] = F.scaled_dot_product_attention

    def __call__(
        self, ids_B1: torch.Tensor, mask_BL: torch.Tensor | None, positions_B1: torch.Tensor, cache: Any
    ) -> torch.Tensor:
        """Logits ``[B, V]``; arguments as those of :func:`plain_step`, one new token per row."""
        x_BH = self.trunk.embed_tokens(ids_B1[:, 0])
        cos_B11D, sin_B11D = (t[:, None] for t in self.trunk.rotary_emb(x_BH, positions_B1))
        visible_B11L = None if mask_BL is None else mask_BL.bool()[:, None, None, :]
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            layer_cache.cast(self.dtype)  # autocast leaves rotated keys in float32, and casts them at every step
            normed_BH = _norm(layer.norm_attention, x_BH)
            x_BH = x_BH + _attend(layer, normed_BH, cos_B11D, sin_B11D, visible_B11L, layer_cache, self.attend)
            gate_up = layer.gate_up(_norm(layer.norm_mlp, x_BH))
            gate, up = gate_up.chunk(2, -1)
            x_BH = x_BH + layer.down(layer.act(gate).mul_(up))
        return self.head(_norm(self.trunk.norm, x_BH))


def _norm(norm: Any, x_BH: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x_BH, (x_BH.shape[-1],), norm.weight, norm.variance_epsilon)


def _attend(
    layer: Layer,
    x_BH: torch.Tensor,
    cos_B11D: torch.Tensor,
    sin_B11D: torch.Tensor,
    visible_B11L: torch.Tensor | None,
    layer_cache: Any,
    attend: Callable[..., torch.Tensor],
) -> torch.Tensor:
    heads_BND = layer.qkv(x_BH).unflatten(-1, (-1, layer.head_dim))
    # heads are of queries, keys and values; the output projection reads the queries
    count_K = (heads_BND.shape[1] - layer.out.inputs // layer.head_dim) // 2
    rotated, v_BKD = heads_BND[:, :-count_K].unsqueeze(2), heads_BND[:, -count_K:]
    half_low, half_high = rotated.chunk(2, -1)
    rotated = rotated * cos_B11D + torch.cat((-half_high, half_low), -1) * sin_B11D
    q_BN1D, k_BK1D = rotated[:, :-count_K], rotated[:, -count_K:]
    k_BKLD, v_BKLD = layer_cache.update(k_BK1D.to(v_BKD.dtype), v_BKD.unsqueeze(2))
    q_BKGD = q_BN1D.squeeze(2).unflatten(1, (count_K, -1)).to(k_BKLD.dtype)
    out_BKGD = attend(q_BKGD, k_BKLD, v_BKLD, attn_mask=visible_B11L, scale=layer.scale)
    return layer.out(out_BKGD.flatten(1))


def _layer(layer: Any, dtype: torch.dtype) -> Layer:
    attention, mlp, linear = layer.self_attn, layer.mlp, partial(BlockedLinear, dtype=dtype)
    return Layer(
        layer.input_layernorm,
        linear(attention.q_proj, attention.k_proj, attention.v_proj),
        linear(attention.o_proj),
        layer.post_attention_layernorm,
        linear(mlp.gate_proj, mlp.up_proj),
        linear(mlp.down_proj),
        mlp.act_fn,
        attention.scaling,
        attention.head_dim,
    )
