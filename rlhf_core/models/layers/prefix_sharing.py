"""Completions of a prompt share its forward *and* backward: the prompt's cached keys and values keep their graph.

Suffixes: ``_P`` distinct prompts, ``_B`` completions, ``_L`` prompt positions, ``_R`` completion positions, ``_N``
completion tokens of all rows, flat, ``_H`` hidden.
"""

from __future__ import annotations

from typing import Any

import torch

from rlhf_core.models.layers.trunk_and_head import Ids, cache_argument, grid_index, on_device, pad_right, trunk_and_head


def distinct(prompts: Ids) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return the distinct prompts in order of appearance, and for every row which one it has."""
    index: dict[tuple[int, ...], int] = {}
    rows = [index.setdefault(tuple(p), len(index)) for p in prompts]
    return list(index), rows


def shared_hidden(model: torch.nn.Module, prompts: Ids, completions: Ids) -> torch.Tensor:
    """Return ``hidden_NH`` as its plain equivalent ``padded_hidden`` does; every distinct prompt is forwarded once."""
    trunk = trunk_and_head(model).trunk
    device = next(model.parameters()).device
    unique, prompt_of = distinct(prompts)
    prompt_of_B = on_device(prompt_of, device)
    lengths_P = on_device([len(p) for p in unique], device)
    width = max(map(len, unique))
    real_PL = torch.arange(width, device=device)[None, :] >= (width - lengths_P)[:, None]
    hidden_PLH, cache = _run_prompts(trunk, unique, real_PL)
    hidden_BTH = hidden_PLH[:, -1:][prompt_of_B]
    if max(map(len, completions)) > 1:
        cache.batch_select_indices(prompt_of_B)
        rest_BRH = _run_completions(trunk, completions, lengths_P[prompt_of_B], real_PL[prompt_of_B], cache)
        hidden_BTH = torch.cat([hidden_BTH, rest_BRH], dim=1)
    return hidden_BTH[grid_index([len(c) for c in completions], device)]


def _run_prompts(trunk: Any, unique: list[tuple[int, ...]], real_PL: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """Left-padded, so that every prompt ends where its completions begin (sliding windows stay right)."""
    from transformers import DynamicCache

    width = real_PL.shape[1]
    ids_PL = on_device([[0] * (width - len(p)) + list(p) for p in unique], real_PL.device)
    cache = DynamicCache(config=trunk.config)
    positions_PL = (real_PL.cumsum(-1) - 1).clamp(min=0)
    return _run_on_cache(trunk, ids_PL, real_PL, positions_PL, cache), cache


def _run_completions(
    trunk: Any, completions: Ids, lengths_B: torch.Tensor, real_BL: torch.Tensor, cache: Any
) -> torch.Tensor:
    """Feed every completion but its last token on top of its prompt's keys and values; right-padded."""
    ids_BR = pad_right([list(c[:-1]) for c in completions], real_BL.device)
    steps_R = torch.arange(ids_BR.shape[1], device=real_BL.device)
    mask_BK = torch.cat([real_BL, real_BL.new_ones(ids_BR.shape)], dim=1)
    return _run_on_cache(trunk, ids_BR, mask_BK, lengths_B[:, None] + steps_R[None, :], cache)


def _run_on_cache(
    trunk: Any, ids_BL: torch.Tensor, mask_BK: torch.Tensor, positions_BL: torch.Tensor, cache: Any
) -> torch.Tensor:
    name = cache_argument(trunk)
    assert name is not None, f"{type(trunk).__name__} takes no cache"
    inputs = {"input_ids": ids_BL, "attention_mask": mask_BK.long(), "position_ids": positions_BL, name: cache}
    return trunk(**inputs, use_cache=True).last_hidden_state
