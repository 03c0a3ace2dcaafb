"""The decoding step of a single row, compiled. One row waits for memory, so each weight is read once, where it is;
:mod:`~rlhf_plugin_native.decode_step` copies it into blocks, which pays for several rows.

A value that several sums read is also returned: then the compiler stores it, and does not compute it again in each.
Suffixes as there: ``_H`` hidden, ``_K`` key-value heads, ``_G`` query heads per key-value head, ``_D`` head width.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch._dynamo.exc import TorchDynamoException

from rlhf_core.config import ConfigError
from rlhf_core.models import split_lm_head
from rlhf_plugin_native.compiled_attention import compiled_attention
from rlhf_plugin_native.decode_step import UNSUPPORTED, Linear, agrees, decode_step, linear

log = logging.getLogger(__name__)
_agrees: weakref.WeakKeyDictionary[torch.nn.Module, bool] = weakref.WeakKeyDictionary()
OPTIONS: dict[str, Any] = {"emulate_precision_casts": True}
"""Round where the model's own forward does."""


class Norm(NamedTuple):
    weight_H: torch.Tensor
    eps: float

    def __call__(self, x_H: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x_H, x_H.shape, self.weight_H, self.eps)


class Projections(NamedTuple):
    """What a layer does before its attention."""

    norm: Norm
    q: Linear
    k: Linear
    v: Linear


class Rest(NamedTuple):
    """What a layer does after its attention."""

    out: Linear
    norm: Norm
    gate: Linear
    up: Linear
    down: Linear


def _project(x_H: torch.Tensor, to: Projections, cos_D: torch.Tensor, sin_D: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Queries ``[1, K, G, D]``, new keys and values ``[1, K, 1, D]``."""
    normed_H = to.norm(x_H).to(to.q.weight_OH.dtype)
    q_KGD, k_KD, v_KD = (linear(normed_H).unflatten(0, (-1, len(cos_D))) for linear in to[1:])
    q_KGD = q_KGD.unflatten(0, (len(k_KD), -1))
    q_KGD, k_KD = (_rotated(x, cos_D, sin_D).to(v_KD.dtype) for x in (q_KGD, k_KD))
    return q_KGD[None], k_KD[None, :, None], v_KD[None, :, None], normed_H


def _rotated(x_D: torch.Tensor, cos_D: torch.Tensor, sin_D: torch.Tensor) -> torch.Tensor:
    low, high = x_D.chunk(2, -1)
    return x_D * cos_D + torch.cat((-high, low), -1) * sin_D


def _finish(x_H: torch.Tensor, attended_H: torch.Tensor, rest: Rest, act: Any) -> tuple[torch.Tensor, ...]:
    x_H = x_H + rest.out(attended_H)
    normed_H = rest.norm(x_H).to(rest.gate.weight_OH.dtype)
    inner_H = act(rest.gate(normed_H)) * rest.up(normed_H)
    return x_H + rest.down(inner_H), inner_H, normed_H, x_H


def _finish_and_project(
    x_H: torch.Tensor,
    attended_H: torch.Tensor,
    rest: Rest,
    act: Any,
    to: Projections,
    cos_D: torch.Tensor,
    sin_D: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """From one layer's attention to the next one's: its ``x_H``, and what :func:`_project` gives."""
    x_H, *stored = _finish(x_H, attended_H, rest, act)
    return x_H, *_project(x_H, to, cos_D, sin_D), *stored


def _finish_and_predict(
    x_H: torch.Tensor, attended_H: torch.Tensor, rest: Rest, act: Any, norm: Norm, head: Linear
) -> tuple[torch.Tensor, ...]:
    """Logits ``[V]``."""
    x_H, *stored = _finish(x_H, attended_H, rest, act)
    normed_H = norm(x_H).to(head.weight_OH.dtype)
    return head(normed_H), normed_H, x_H, *stored


def row_step(model: Any, dtype: torch.dtype) -> RowStep | None:
    """A compiled step for one row, with the model's present weights in ``dtype``; None, with a warning, of a model that
    :func:`decode_step` does not serve.

    Raises:
        ConfigError: it cannot be compiled here.
    """
    parts = split_lm_head(model, linear=True)
    key = model if parts is None else parts.trunk
    if _agrees.get(key) is False:
        return None
    try:
        assert parts is not None, "its head is not a linear layer"
        layers, norm = [_layer(layer, dtype) for layer in parts.trunk.layers], _norm(parts.trunk.norm)
        head, first = linear(parts.head, parts.head.weight.dtype), parts.trunk.layers[0]
        step = RowStep(parts.trunk, layers, norm, head, first.mlp.act_fn, first.self_attn.scaling)
        if key not in _agrees:  # its products are summed in another order than the model's
            assert decode_step(model) is not None, "its layers compute something else"
            assert agrees(model, step, rows=1, times=3), "its compiled layers compute something else"
            _agrees[key] = True
    except TorchDynamoException as error:
        raise ConfigError(
            "the decoding step cannot be compiled",
            where="rollout.compile",
            why=str(error).strip().partition("\n")[0],
            fix="install a C++ compiler (g++) and Python's headers, or leave rollout.compile out",
        ) from error
    except ConfigError:
        raise
    except UNSUPPORTED as error:
        _agrees[key] = False
        log.warning("rollout.compile has no effect on %s: %s", type(key).__name__, error)
        return None
    return step


class RowStep:
    """Called as a forward of one token of one row. In float32 it reads the weights where they are."""

    def __init__(
        self, trunk: Any, layers: Sequence[tuple[Projections, Rest]], norm: Norm, head: Linear, act: Any, scale: float
    ) -> None:
        self.trunk, self.layers, self.norm, self.head, self.act, self.scale = trunk, layers, norm, head, act, scale

    def __call__(
        self, ids_B1: torch.Tensor, mask_BL: torch.Tensor | None, positions_B1: torch.Tensor, cache: Any
    ) -> torch.Tensor:
        """Logits ``[1, V]``; a row alone has nothing to mask."""
        project, between, predict = _compiled()
        x_H = self.trunk.embed_tokens(ids_B1[0, 0])
        cos_D, sin_D = (t[0, 0] for t in self.trunk.rotary_emb(x_H[None, None], positions_B1))
        q, k, v, *_ = project(x_H, self.layers[0][0], cos_D, sin_D)
        for i, (_, rest) in enumerate(self.layers[:-1]):
            attended_H = self._attend(cache.layers[i], q, k, v)
            x_H, q, k, v, *_ = between(x_H, attended_H, rest, self.act, self.layers[i + 1][0], cos_D, sin_D)
        attended_H = self._attend(cache.layers[-1], q, k, v)
        return predict(x_H, attended_H, self.layers[-1][1], self.act, self.norm, self.head)[0][None]

    def _attend(self, layer_cache: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        layer_cache.cast(v.dtype)
        keys, values = layer_cache.update(k, v)
        return compiled_attention(q, keys, values, scale=self.scale).flatten()


@functools.cache
def _compiled() -> tuple[Callable[..., Any], ...]:
    """Once per process; torch keeps a version for each size of model, and the machine code on disk."""
    functions = (_project, _finish_and_project, _finish_and_predict)
    return tuple(torch.compile(f, dynamic=False, fullgraph=True, options=OPTIONS) for f in functions)


def _layer(layer: Any, dtype: torch.dtype) -> tuple[Projections, Rest]:
    attention, mlp, of = layer.self_attn, layer.mlp, partial(linear, dtype=dtype)
    projections = map(of, (attention.q_proj, attention.k_proj, attention.v_proj))
    gate, up, down = map(of, (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
    rest = Rest(of(attention.o_proj), _norm(layer.post_attention_layernorm), gate, up, down)
    return Projections(_norm(layer.input_layernorm), *projections), rest


def _norm(norm: Any) -> Norm:
    return Norm(norm.weight.detach(), norm.variance_epsilon)
