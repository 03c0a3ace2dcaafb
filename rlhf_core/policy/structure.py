"""Finds a causal LM's trunk and head, so that the head need only see the positions that matter.

Every transformers causal LM is a decoder followed by an output embedding, but some scale or cap the logits in
between (Gemma 2, Granite, Cohere). Nothing is assumed from a class name: the split is *tried* once per model on a
few tokens, against the model's own logits, and used only if it agrees.

Suffixes: ``_B`` sequences, ``_L`` positions, ``_H`` hidden, ``_V`` vocabulary.
"""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

log = logging.getLogger(__name__)
TOLERANCE = 1e-4
"""Largest relative difference (float32) that still counts as agreement; bfloat16 is given 100 times as much."""


@dataclass(frozen=True)
class Structure:
    """What is known about one model.

    Example:
        Structure(split=True, share=True, pack=True)  # Llama, Qwen, SmolLM, GPT-2 ...
    """

    split: bool
    """``head(decoder(ids))`` are the model's logits."""
    share: bool
    """A cached prompt may be shared by several completions."""
    pack: bool
    """Sequences may lie end to end in one row (:mod:`rlhf_core.kernels.packing`), prompts shared or not."""


_known: weakref.WeakKeyDictionary[torch.nn.Module, Structure] = weakref.WeakKeyDictionary()


def base_model(model: Any) -> Any:
    """Return the transformers causal LM under a peft wrapper (adapters stay active: they live in its layers)."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@dataclass(frozen=True)
class TrunkAndHead:
    """A causal LM taken apart."""

    trunk: Any
    """Tokens to hidden states."""
    head: Any
    """Hidden states to logits; what else the model does to them only :func:`structure` knows."""


def take_apart(model: Any) -> TrunkAndHead | None:
    """Return trunk and head of a causal LM (adapters included), None where they cannot be found."""
    base = base_model(model)
    try:
        trunk, head = base.get_decoder(), base.get_output_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    return None if trunk is base or head is None else TrunkAndHead(trunk, head)


def trunk_and_head(model: Any) -> TrunkAndHead:
    """As :func:`take_apart`, for a model of which ``structure(model).split`` is known to hold."""
    parts = take_apart(model)
    assert parts is not None, f"{type(base_model(model)).__name__} does not split; ask structure(model) first"
    return parts


def structure(model: torch.nn.Module) -> Structure:
    """Return what the model's structure allows; the first call per model runs a few forwards on a few tokens."""
    base = base_model(model)
    if base not in _known:
        _known[base] = _examine(model)
    return _known[base]


def _examine(model: torch.nn.Module) -> Structure:
    with torch.no_grad(), quiet(model):
        split = _split_agrees(model)
        share = split and _shareable(model) and _shared_agrees(model)
        pack = split and _pack_agrees(model)
    if not split:
        log.warning(
            "%s: head(decoder(x)) are not its logits; full logits will be used (more memory)",
            type(base_model(model)).__name__,
        )
    return Structure(split, share, pack)


@contextmanager
def quiet(model: torch.nn.Module) -> Iterator[None]:
    """Eval mode inside, every module's own mode restored after."""
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _probe_ids(model: torch.nn.Module) -> list[list[int]]:
    vocabulary = int(base_model(model).config.get_text_config().vocab_size)
    return [[(7 * i + 3 * row + 1) % vocabulary for i in range(5 + row)] for row in range(2)]


def tolerance(model: torch.nn.Module) -> float:
    """Agreement asked of the probes, by the model's number type."""
    return TOLERANCE if compute_dtype(model) == torch.float32 else 100 * TOLERANCE


def compute_dtype(model: torch.nn.Module) -> torch.dtype:
    """Number type of the trunk's matrix products: its weights' own, unless it runs in mixed precision."""
    parts = take_apart(model)
    owner = base_model(model) if parts is None else parts.trunk
    return getattr(owner, "compute_dtype", next(model.parameters()).dtype)


def _split_agrees(model: torch.nn.Module) -> bool:
    """The head is fed the decoder's output, and its output *is* the logits.

    The head's output is blown up on the way, so that a cap or a scale shows even where logits are small.
    """
    parts = take_apart(model)
    if parts is None:
        return False
    seen: dict[str, torch.Tensor] = {}

    def enlarge(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        seen["hidden"], seen["logits"] = inputs[0], output * 1000.0
        return seen["logits"]

    ids_BL = torch.tensor(_probe_ids(model)[:1], device=next(model.parameters()).device)
    handle = parts.head.register_forward_hook(enlarge)
    try:
        logits_BLV = base_model(model)(input_ids=ids_BL, use_cache=False).logits
    finally:
        handle.remove()
    hidden_BLH = parts.trunk(input_ids=ids_BL, use_cache=False).last_hidden_state
    return "hidden" in seen and agree(seen["hidden"], hidden_BLH, model) and agree(seen["logits"], logits_BLV, model)


def agree(got: torch.Tensor, want: torch.Tensor, model: torch.nn.Module) -> bool:
    """Whether two results of one model are the same but for rounding (:func:`tolerance`)."""
    scale = want.float().abs().max().clamp(min=1e-6)
    return got.shape == want.shape and bool(((got.float() - want.float()).abs().max() / scale) <= tolerance(model))


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
    short, long = _probe_ids(model)
    return [short[:2], long[:4], short[:2]], [short[2:], long[4:], long[:3]]


def _shared_agrees(model: torch.nn.Module) -> bool:
    from rlhf_core.kernels.prefix_sharing import shared_hidden
    from rlhf_core.policy.padded import padded_hidden

    prompts, completions = _probe_rows(model)
    try:
        shared = shared_hidden(model, prompts, completions)
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        log.info("prefix sharing is off for %s: %s", type(base_model(model)).__name__, error)
        return False
    return agree(shared, padded_hidden(model, prompts, completions), model)


def _pack_agrees(model: torch.nn.Module) -> bool:
    """Attention goes through transformers' interface, where ours stays if it agrees; nothing else mixes positions."""
    from rlhf_core.kernels import packing
    from rlhf_core.policy.padded import padded_hidden

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


def checkpointing(model: torch.nn.Module) -> bool:
    """Gradient checkpointing acts; it switches caches off inside transformers."""
    return any(getattr(m, "gradient_checkpointing", False) and m.training for m in base_model(model).modules())
