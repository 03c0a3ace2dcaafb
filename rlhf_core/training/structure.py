"""Which kernels a model allows. Nothing is assumed from a class name: each is *tried* once per model on a few tokens,
against its plain equivalent, and used only if it agrees.
"""

from __future__ import annotations

import inspect
import logging
import weakref
from dataclasses import dataclass

import torch

from rlhf_core.models.layers import packing
from rlhf_core.models.layers.agreement import agree, rounding_tolerance
from rlhf_core.models.layers.padded import padded_hidden
from rlhf_core.models.layers.prefix_sharing import shared_hidden
from rlhf_core.models.layers.split import has_linear_head, probe_ids
from rlhf_core.models.layers.trunk_and_head import (
    TrunkAndHead,
    base_model,
    checkpointing,
    compute_dtype,
    quiet,
    take_apart,
    trunk_and_head,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Structure:
    """What is known about one model.

    Example:
        Structure(split=True, share=True, pack=True)  # Llama, Qwen, SmolLM, GPT-2 ...
    """

    split: bool
    """``head(trunk(ids))`` are the model's logits."""
    share: bool
    """A cached prompt may be shared by several completions (:mod:`rlhf_core.models.layers.prefix_sharing`)."""
    pack: bool
    """Sequences may lie end to end in one row (:mod:`rlhf_core.models.layers.packing`), prompts shared or not."""


_known: weakref.WeakKeyDictionary[torch.nn.Module, Structure] = weakref.WeakKeyDictionary()


def structure(model: torch.nn.Module) -> Structure:
    """Return what the model's structure allows; the first call per model runs a few forwards on a few tokens."""
    base = base_model(model)
    if base not in _known:
        _known[base] = _examine(model)
    return _known[base]


def _examine(model: torch.nn.Module) -> Structure:
    with torch.no_grad(), quiet(model):
        split = has_linear_head(model)
        share = split and _shareable(model) and _shared_agrees(model)
        pack = split and _pack_agrees(model)
    if not split:
        log.warning(
            "%s: head(decoder(x)) are not its logits; full logits will be used (more memory)",
            type(base_model(model)).__name__,
        )
    return Structure(split, share, pack)


def _shareable(model: torch.nn.Module) -> bool:
    """Explicit positions are accepted, and every layer's past is keys and values (no recurrent state)."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    trunk = trunk_and_head(model).trunk
    cache = DynamicCache(config=trunk.config)
    plain = all(type(layer).__name__ in ("DynamicLayer", "DynamicSlidingWindowLayer") for layer in cache.layers)
    takes_positions = "position_ids" in inspect.signature(trunk.forward).parameters
    return plain and isinstance(cache.layers[0], DynamicLayer) and takes_positions


def _probe_rows(model: torch.nn.Module) -> tuple[list[list[int]], list[list[int]]]:
    """Three prompts, two of them equal, and completions of different lengths."""
    short, long = probe_ids(model)
    return [short[:2], long[:4], short[:2]], [short[2:], long[4:], long[:3]]


def _shared_agrees(model: torch.nn.Module) -> bool:
    prompts, completions = _probe_rows(model)
    try:
        shared = shared_hidden(model, prompts, completions)
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        log.info("prefix sharing is off for %s: %s", type(base_model(model)).__name__, error)
        return False
    return agree(shared, padded_hidden(model, prompts, completions), model)


def _pack_agrees(model: torch.nn.Module) -> bool:
    """Attention goes through transformers' interface, where ours stays if it agrees; nothing else mixes positions."""
    base, (prompts, completions) = base_model(model), _probe_rows(model)
    if base.config._attn_implementation not in ("sdpa", packing.NAME):
        return False
    want = padded_hidden(model, prompts, completions)
    packing.register()
    base.set_attn_implementation(packing.NAME)
    try:
        agrees = all(
            agree(packing.packed_hidden(model, prompts, completions, share), want, model) for share in (False, True)
        )
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        log.info("packing is off for %s: %s", type(base).__name__, error)
        agrees = False
    if not agrees:
        base.set_attn_implementation("sdpa")
    return agrees


__all__ = [
    "Structure",
    "TrunkAndHead",
    "base_model",
    "checkpointing",
    "compute_dtype",
    "quiet",
    "rounding_tolerance",
    "structure",
    "take_apart",
    "trunk_and_head",
]
