"""One token of a full batch sampled by the native engine without weights: its cache, its logits, and its own copies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rlhf_core.models.layers.trunk_and_head import base_model, compute_dtype
from rlhf_plugin_preflight.memory.live import UNNAMED, LiveBytes, tensor_bytes
from rlhf_plugin_preflight.memory.sizes import Sizes

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext

Parts = dict[str, int]
CONCURRENT = 256
"""Completions decoded together, where the engine's settings do not say."""


@dataclass(frozen=True)
class Sampling:
    """What sampling holds beside what is held anyway, and when."""

    copying: Parts
    """When the engine's own copy of the weights is complete."""
    reading: Parts
    """Of the prompts."""
    decoding: Parts
    """Of the last token."""
    rows: int
    """Completions that are decoded together."""
    positions: int
    """Cached positions of each at its last token."""

    @property
    def parts(self) -> Parts:
        return max(self.copying, self.reading, self.decoding, key=lambda parts: sum(parts.values()))


def rehearse_sampling(ctx: BuildContext, sizes: Sizes, *, on_cpu: bool) -> Sampling:
    """Read the longest prompts, then decode the last token; the native engine copies weights ``on_cpu``."""
    from rlhf_plugin_native.sampling import sampling_forwards  # autocast keeps its casts of all weights in it

    prompts, rows = _together(ctx.config.rollout, sizes)
    longest = max(prompts)
    copied = decode_copy_bytes(ctx.policy.model) if on_cpu and sizes.completion >= _worth_tokens() else 0
    copy: Parts = {"decode copy": copied} if copied else {}

    with sampling_forwards(ctx.policy.model), LiveBytes() as live, torch.no_grad():
        live.name("weights", [*ctx.policy.model.parameters(), *ctx.policy.model.buffers()])
        read = _read(ctx.policy.model, prompts, longest, live)
        decoded = _decode(ctx, rows, longest, sizes.completion, live)
    copying = {**copy, UNNAMED: head_bytes(ctx.policy.model)} if copied else {}
    return Sampling(copying, {**copy, **read}, {**copy, **decoded}, rows, longest + sizes.completion)


def _together(engine: Any, sizes: Sizes) -> tuple[Sequence[int], int]:
    """The prompts that are read together, and the completions that are decoded together."""
    width = max(sizes.prompts) + sizes.completion
    most = int(getattr(engine, "max_concurrent", CONCURRENT))
    if (budget := getattr(engine, "max_batch_tokens", None)) is not None:
        most = min(most, max(1, budget // width))
    rows = min(len(sizes.prompts) * sizes.group, most)
    return sizes.prompts[: max(1, math.ceil(rows / sizes.group))], rows


def _worth_tokens() -> int:
    from rlhf_plugin_native.decode_step import WORTH_TOKENS

    return WORTH_TOKENS


def _read(model: Any, prompts: Sequence[int], longest: int, live: LiveBytes) -> Parts:
    """Forward over the distinct prompts, padded."""
    from rlhf_plugin_native.decode_step import make_cache, plain_step

    trunk = _trunk(model)
    cache = make_cache(trunk.config)
    ids_PL = torch.zeros((len(prompts), longest), dtype=torch.long)
    mask_PL = None if min(prompts) == longest else torch.ones_like(ids_PL)
    live.begin()
    plain_step(model, _parts(model), ids_PL, mask_PL, torch.zeros_like(ids_PL), cache)
    cache_bytes = tensor_bytes(t for layer in cache.layers for t in getattr(layer, "buffers", ()))
    rest = max(0, live.at_peak.get(UNNAMED, 0) - cache_bytes)
    return {name: size for name, size in {"KV cache": cache_bytes, UNNAMED: rest}.items() if size}


def _decode(ctx: BuildContext, rows: int, longest: int, completion: int, live: LiveBytes) -> Parts:
    """The last token: a cache of full width, one layer of which has just been made wider."""
    from rlhf_plugin_native.decode_step import GrowingLayer, capacity, make_cache, plain_step
    from rlhf_plugin_native.sampling import draw

    model = ctx.policy.model
    cache = make_cache(_trunk(model).config)
    ids_B1 = torch.zeros((rows, 1), dtype=torch.long)
    plain_step(model, _parts(model), ids_B1, None, ids_B1, cache)
    width = longest + completion - 1
    room = capacity(longest)
    while room <= width:
        room = capacity(room + 1)
    cached: list[torch.Tensor] = []
    layers: list[Any] = list(cache.layers)
    for layer in layers:
        if isinstance(layer, GrowingLayer):
            layer.buffers = [b.new_empty((rows, b.shape[1], room, b.shape[3])) for b in layer.buffers]
            layer.length = width
            layer._views()
            cached += layer.buffers
        elif getattr(layer, "keys", None) is not None:
            layer.keys, layer.values = (
                t.new_empty((rows, t.shape[1], width, t.shape[3])) for t in (layer.keys, layer.values)
            )
            cached += [layer.keys, layer.values]
    live.name("KV cache", cached)
    growing = 2 * max((t.numel() * t.element_size() for t in cached), default=0)
    if room == capacity(longest) and all(isinstance(layer, GrowingLayer) for layer in layers):
        growing = 0  # what was made for the prompts is wide enough
    live.begin()
    logits_BV = plain_step(model, _parts(model), ids_B1, torch.ones((rows, width + 1), dtype=torch.long), ids_B1, cache)
    drawn_with: Any = ctx.config.trainer
    draw(logits_BV, torch.zeros(rows, dtype=torch.float64), drawn_with.sampling.params(), None)
    return _beside_weights(live, growing)


def _beside_weights(live: LiveBytes, growing: int) -> Parts:
    cache = live.at_peak.get("KV cache", 0)
    rest = max(live.at_peak.get(UNNAMED, 0), growing)
    return {name: size for name, size in {"KV cache": cache, UNNAMED: rest}.items() if size}


def _parts(model: Any) -> Any:
    from rlhf_core.models import split_lm_head
    from rlhf_core.training.forward import structure

    return split_lm_head(model) if structure(model).split else None


def _trunk(model: Any) -> Any:
    from rlhf_core.models import split_lm_head

    parts = split_lm_head(model)
    return base_model(model) if parts is None else parts.trunk


def decode_copy_bytes(model: Any) -> int:
    """Of the weights that ``rlhf_plugin_native.decode_step.DecodeStep`` copies; 0 where it serves no such model."""
    from rlhf_core.models import split_lm_head

    parts = split_lm_head(model)
    if parts is None or not hasattr(parts.trunk, "layers"):
        return 0
    each = torch.empty((), dtype=compute_dtype(model)).element_size()
    total = tensor_bytes([parts.head.weight])
    try:
        for layer in parts.trunk.layers:
            attention, mlp = layer.self_attn, layer.mlp
            for linear in (
                attention.q_proj,
                attention.k_proj,
                attention.v_proj,
                attention.o_proj,
                mlp.gate_proj,
                mlp.up_proj,
                mlp.down_proj,
            ):
                total += _base(linear).weight.numel() * each
    except AttributeError:
        return 0
    return total


def head_bytes(model: Any) -> int:
    """Of the head, which is copied last: as it lies first, then into the other layout."""
    from rlhf_core.models import split_lm_head

    parts = split_lm_head(model)
    return 0 if parts is None else tensor_bytes([parts.head.weight])


def _base(layer: Any) -> Any:
    return layer.get_base_layer() if hasattr(layer, "get_base_layer") else layer
