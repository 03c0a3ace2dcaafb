"""One decoding step of a Llama-like model without what transformers does around it: CPU only.

A decoding step multiplies a few rows by every weight, so what counts is how the weights lie in memory. Here they are
copied once per call of the engine into the blocked layout that oneDNN multiplies fastest (queries, keys and values as
one matrix, gate and up as one), norms are one operation instead of six, and heads that share keys are one query of
several rows, so that keys are not repeated. The copy costs about as much time as four steps, and the model's size in
memory.

Nothing is assumed from a class name: a model whose layers have the usual parts is *tried* against its own forward,
once, or at every call where adapters are added in; whatever does not agree (other norms, scaled residuals, another
rotation) is decoded by transformers.

Suffixes: ``_B`` rows, ``_H`` hidden, ``_K`` key-value heads, ``_G`` query heads per key-value head, ``_D`` head width,
``_L`` positions, ``_V`` vocabulary.
"""

from __future__ import annotations

import logging
import weakref
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from rlhf_core.kernels.kv_cache import growing, make_cache
from rlhf_core.policy.structure import base_model, compute_dtype, structure, take_apart, tolerance

log = logging.getLogger(__name__)
WORTH_TOKENS = 16
"""Completions that may get at least so many tokens pay for the copy of the weights."""
MISSING = (AttributeError, TypeError, ValueError, RuntimeError, AssertionError)
"""What trying a model of another make may raise."""

_agrees: weakref.WeakKeyDictionary[torch.nn.Module, bool] = weakref.WeakKeyDictionary()


class Packed:
    """Linear layers side by side, in oneDNN's layout.

    Args:
        layers: of equal input width; adapters of peft are added to the weights.
        dtype: number type of inputs, weights and outputs.
    """

    def __init__(self, *layers: Any, dtype: torch.dtype) -> None:
        weight_OH = torch.cat([_weight(layer) for layer in layers]).detach().to(dtype)
        assert all(type(_base(layer)) is torch.nn.Linear for layer in layers), "not a plain linear layer"
        biases = [_base(layer).bias for layer in layers]
        self.bias = None if biases[0] is None else torch.cat(biases).detach().to(dtype)
        self.inputs, self.dtype = weight_OH.shape[1], dtype
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight_OH.contiguous())

    def __call__(self, x_BH: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise.default(x_BH.to(self.dtype), self.weight, self.bias, "none", [], "")


def _base(layer: Any) -> Any:
    """The layer under an adapter."""
    return layer.get_base_layer() if hasattr(layer, "get_base_layer") else layer


def _weight(layer: Any) -> torch.Tensor:
    if _base(layer) is layer:
        return layer.weight
    if layer.disable_adapters or layer.merged:
        return _base(layer).weight
    return _base(layer).weight + sum(layer.get_delta_weight(name) for name in layer.active_adapters)


def decode_step(model: Any) -> DecodeStep | None:
    """Return a fast step with the model's present weights, None where there is none or it does not agree."""
    base = base_model(model)
    device = next(model.parameters()).device
    if device.type != "cpu" or not torch.backends.mkldnn.is_available() or _agrees.get(base) is False:
        return None
    try:
        if not structure(model).split:
            return None
        step = DecodeStep(model)
        if base is not model or base not in _agrees:
            _agrees[base] = _agree(model, step)
    except MISSING as error:
        log.info("%s is decoded by transformers: %s", type(base).__name__, error)
        _agrees[base] = False
        return None
    return step if _agrees[base] else None


def _agree(model: Any, step: DecodeStep) -> bool:
    """One step after two short prompts of different length, against the model's own."""
    parts = take_apart(model)
    assert parts is not None
    vocabulary = int(step.trunk.config.get_text_config().vocab_size)
    ids_BL = torch.tensor([[0, 0, 5, 7, 11], [3, 1, 4, 1, 5]]) % vocabulary
    mask_BL = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    next_B1, positions_B1 = ids_BL[:, 2:3], torch.tensor([[3], [5]])

    def run(own: bool) -> torch.Tensor:
        cache = make_cache(step.trunk.config)
        assert growing(cache), "its layers do not attend to everything"
        parts.trunk(
            input_ids=ids_BL,
            attention_mask=mask_BL[:, :5],
            past_key_values=cache,
            use_cache=True,
            position_ids=(mask_BL[:, :5].cumsum(-1) - 1).clamp(min=0),
        )
        if not own:
            return step(next_B1, mask_BL, positions_B1, cache)
        hidden = parts.trunk(
            input_ids=next_B1, attention_mask=mask_BL, past_key_values=cache, use_cache=True, position_ids=positions_B1
        ).last_hidden_state
        return parts.head(hidden[:, -1])

    want, got = run(own=True).float(), run(own=False).float()
    return bool((got - want).abs().max() <= tolerance(model) * want.abs().max().clamp(min=1e-6))


@dataclass(frozen=True)
class Layer:
    """One decoder layer."""

    norm_attention: Any
    qkv: Packed
    out: Packed
    norm_mlp: Any
    gate_up: Packed
    down: Packed
    act: Any
    scale: float
    head_dim: int


class DecodeStep:
    """The weights of a model as they were when this was made; called as a forward of one token per row."""

    def __init__(self, model: Any) -> None:
        parts = take_apart(model)
        assert parts is not None
        self.trunk = parts.trunk
        self.dtype = compute_dtype(model)
        self.layers = [_layer(layer, self.dtype) for layer in self.trunk.layers]
        self.head = Packed(parts.head, dtype=parts.head.weight.dtype)

    def __call__(
        self, ids_B1: torch.Tensor, mask_BL: torch.Tensor | None, positions_B1: torch.Tensor, cache: Any
    ) -> torch.Tensor:
        """Logits ``[B, V]``; arguments as those of :meth:`rlhf_core.rollout.native.NativeEngine.logits`."""
        x_BH = self.trunk.embed_tokens(ids_B1[:, 0])
        cos_B11D, sin_B11D = (t[:, None] for t in self.trunk.rotary_emb(x_BH, positions_B1))
        hide = None if mask_BL is None else mask_BL.bool()[:, None, None, :]
        for layer, kept in zip(self.layers, cache.layers, strict=True):
            kept.cast(self.dtype)  # autocast leaves rotated keys in float32, and casts them at every step
            x_BH = x_BH + _attend(layer, _norm(layer.norm_attention, x_BH), cos_B11D, sin_B11D, hide, kept)
            gate_up = layer.gate_up(_norm(layer.norm_mlp, x_BH))
            gate, up = gate_up.chunk(2, -1)
            x_BH = x_BH + layer.down(layer.act(gate).mul_(up))
        return self.head(_norm(self.trunk.norm, x_BH))


def _norm(norm: Any, x_BH: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x_BH, (x_BH.shape[-1],), norm.weight, norm.variance_epsilon)


def _attend(
    layer: Layer, x_BH: torch.Tensor, cos_B11D: torch.Tensor, sin_B11D: torch.Tensor, hide: Any, kept: Any
) -> torch.Tensor:
    heads_BND = layer.qkv(x_BH).unflatten(-1, (-1, layer.head_dim))
    count_K = _key_heads(layer, heads_BND.shape[1])
    rotated, v_BKD = heads_BND[:, :-count_K].unsqueeze(2), heads_BND[:, -count_K:]
    half_low, half_high = rotated.chunk(2, -1)
    rotated = rotated * cos_B11D + torch.cat((-half_high, half_low), -1) * sin_B11D
    q_BN1D, k_BK1D = rotated[:, :-count_K], rotated[:, -count_K:]
    k_BKLD, v_BKLD = kept.update(k_BK1D.to(v_BKD.dtype), v_BKD.unsqueeze(2))
    q_BKGD = q_BN1D.squeeze(2).unflatten(1, (count_K, -1)).to(k_BKLD.dtype)
    out_BKGD = F.scaled_dot_product_attention(q_BKGD, k_BKLD, v_BKLD, attn_mask=hide, scale=layer.scale)
    return layer.out(out_BKGD.flatten(1))


def _key_heads(layer: Layer, all_heads: int) -> int:
    """``all_heads`` counts queries, keys and values; the output projection reads the queries."""
    return (all_heads - layer.out.inputs // layer.head_dim) // 2


def _layer(layer: Any, dtype: torch.dtype) -> Layer:
    attention, mlp, packed = layer.self_attn, layer.mlp, partial(Packed, dtype=dtype)
    return Layer(
        layer.input_layernorm,
        packed(attention.q_proj, attention.k_proj, attention.v_proj),
        packed(attention.o_proj),
        layer.post_attention_layernorm,
        packed(mlp.gate_proj, mlp.up_proj),
        packed(mlp.down_proj),
        mlp.act_fn,
        attention.scaling,
        attention.head_dim,
    )
