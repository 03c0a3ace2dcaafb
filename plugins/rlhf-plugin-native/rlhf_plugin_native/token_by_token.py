"""Whether a model can be decoded token by token, with sequences of different length side by side: one with other states
than keys and values is *tried* once, on a few tokens, against its own forward over each sequence."""

from __future__ import annotations

import logging
import weakref
from typing import Any

import torch

from rlhf_core.models import split_lm_head
from rlhf_core.models.layers.trunk_and_head import (
    agree,
    base_model,
    cache_argument,
    keys_and_values_only,
    probe_ids,
    quiet,
)
from rlhf_plugin_native.decode_step import UNSUPPORTED, make_cache, plain_step, select_sequences

log = logging.getLogger(__name__)
_supported: weakref.WeakKeyDictionary[torch.nn.Module, bool] = weakref.WeakKeyDictionary()


def decodes(model: Any) -> bool:
    """Whether cached decoding gives the model's own logits; one with recurrent layers is tried at the first call."""
    base = base_model(model)
    if base not in _supported:
        parts = split_lm_head(model)
        cache = make_cache((parts.trunk if parts else base).config)
        stateful = getattr(base, "_is_stateful", False)
        usual = keys_and_values_only(cache) and cache_argument(base) is not None and not stateful
        _supported[base] = usual or _agrees(model, cache)
    return _supported[base]


def _agrees(model: Any, cache: Any) -> bool:
    try:
        with torch.no_grad(), quiet(model):
            return _trial(model, cache)
    except (*UNSUPPORTED, IndexError, KeyError, NotImplementedError) as error:
        log.info("%s is not decoded token by token: %s", type(base_model(model)).__name__, error)
        return False


def _trial(model: Any, cache: Any) -> bool:
    """Two prompts of different length, one of them for two rows, and two tokens more for each row."""
    short, long = probe_ids(model)
    device = next(model.parameters()).device
    prompts, rows = [short[:2], long[:4]], torch.tensor([0, 1, 0], device=device)
    ids_PL = torch.tensor([[0, 0, *prompts[0]], prompts[1]], device=device)
    mask_PL = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]], device=device)
    positions_PL = (mask_PL.cumsum(-1) - 1).clamp(min=0)
    plain_step(model, None, ids_PL, mask_PL, positions_PL, cache)
    select_sequences(cache, rows)
    mask_BK, positions_B1 = mask_PL[rows], positions_PL[rows, -1:]
    sequences = [[*prompts[i], *more] for i, more in zip(rows.tolist(), (short[2:4], long[4:6], long[1:3]))]
    for step in (2, 1):
        ids_B1 = torch.tensor([[s[-step]] for s in sequences], device=device)
        mask_BK, positions_B1 = torch.nn.functional.pad(mask_BK, (0, 1), value=1), positions_B1 + 1
        got_BV = plain_step(model, None, ids_B1, mask_BK, positions_B1, cache)
        prefixes = [torch.tensor([s[: len(s) - step + 1]], device=device) for s in sequences]
        want_BV = torch.cat([base_model(model)(input_ids=ids, use_cache=False).logits[:, -1] for ids in prefixes])
        if not agree(got_BV, want_BV, model):
            return False
    return True
