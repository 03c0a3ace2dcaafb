"""Whether a model's logits are its head applied to its trunk's hidden states.

Every transformers causal LM is a decoder followed by an output embedding, but some scale or cap the logits in
between (Gemma 2, Granite, Cohere). Nothing is assumed from a class name: the split is *tried* once per model on a
few tokens, against the model's own logits.

Suffixes: ``_B`` sequences, ``_L`` positions, ``_H`` hidden, ``_V`` vocabulary.
"""

from __future__ import annotations

import weakref

import torch

from rlhf_core.models.layers.agreement import agree
from rlhf_core.models.layers.trunk_and_head import base_model, quiet, take_apart

_known: weakref.WeakKeyDictionary[torch.nn.Module, bool] = weakref.WeakKeyDictionary()


def has_linear_head(model: torch.nn.Module) -> bool:
    """Whether ``head(trunk(ids))`` are the model's logits; the first call per model runs two short forwards."""
    base = base_model(model)
    if base not in _known and next(base.parameters()).is_meta:
        return take_apart(model) is not None  # without weights there is nothing to try; the first forward does
    if base not in _known:
        with torch.no_grad(), quiet(model):
            _known[base] = _split_agrees(model)
    return _known[base]


def probe_ids(model: torch.nn.Module) -> list[list[int]]:
    """Two short token sequences, of 5 and 6 valid ids, on which a model's forwards are compared."""
    vocabulary = int(base_model(model).config.get_text_config().vocab_size)
    return [[(7 * i + 3 * row + 1) % vocabulary for i in range(5 + row)] for row in range(2)]


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

    ids_BL = torch.tensor(probe_ids(model)[:1], device=next(model.parameters()).device)
    handle = parts.head.register_forward_hook(enlarge)
    try:
        logits_BLV = base_model(model)(input_ids=ids_BL, use_cache=False).logits
    finally:
        handle.remove()
    hidden_BLH = parts.trunk(input_ids=ids_BL, use_cache=False).last_hidden_state
    return "hidden" in seen and agree(seen["hidden"], hidden_BLH, model) and agree(seen["logits"], logits_BLV, model)
