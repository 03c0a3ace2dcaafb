"""Logprobs of completions under a policy, with gradient: only completion tokens meet the LM head.

Suffixes: ``_B`` sequences, ``_T`` completion tokens, ``_P`` distinct prompts, ``_L`` padded input length.
Lengths are carried, never inferred from token ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rlhf_core.functional.logprobs import chosen_logprobs, head_logprobs

Ids = Sequence[int]
_SCALED = ("final_logit_softcapping", "logits_scaling", "logit_scale", "lm_head_multiplier")


@dataclass(frozen=True)
class CompletionLogprobs:
    """Right-padded grids over completion tokens; padded places hold 0."""

    logprobs_BT: torch.Tensor
    entropy_BT: torch.Tensor | None
    mask_BT: torch.Tensor


@dataclass(frozen=True)
class Parts:
    """A causal model taken apart: trunk (tokens to hidden states) and head (hidden states to logits)."""

    trunk: Any
    head: Any


def take_apart(model: Any) -> Parts | None:
    """Return trunk and head, or None for a model that post-processes its logits."""
    plain = model.get_base_model() if hasattr(model, "get_base_model") else model
    head = plain.get_output_embeddings() if hasattr(plain, "get_output_embeddings") else None
    trunk = getattr(plain, getattr(plain, "base_model_prefix", ""), None)
    scaled = any(getattr(plain.config, name, None) not in (None, 1.0) for name in _SCALED)
    return None if head is None or trunk is None or trunk is plain or scaled else Parts(trunk, head)


def completion_logprobs(
    model: Any, prompts: Sequence[Ids], completions: Sequence[Ids], *, temperature: float = 1.0, entropy: bool = False,
    shared_prefix: bool = False,
) -> CompletionLogprobs:
    """Log-probability of every completion token given its prompt.

    Args:
        model: causal language model, possibly peft-wrapped.
        prompts: token ids of B prompts, each at least one token.
        completions: token ids of B completions, each at least one token.
        temperature: of the distribution whose probabilities are meant.
        entropy: also return entropies in nats (no gradient).
        shared_prefix: run each distinct prompt once and let its completions attend to it; the same
            result up to float rounding, cheaper when prompts repeat.

    Returns:
        Grids ``[B, T]`` with T the longest completion.
    """
    parts = take_apart(model)
    repeats = len({tuple(p) for p in prompts}) < len(prompts)
    if parts is not None and shared_prefix and repeats and not getattr(parts.trunk, "gradient_checkpointing", False):
        hidden_NH = _shared_hidden(parts.trunk, prompts, completions)
    else:
        hidden_NH = _padded(model, parts, prompts, completions)
    device = hidden_NH.device
    targets_N = torch.tensor([t for c in completions for t in c], device=device)
    if parts is not None:
        logprobs_N, entropy_N = head_logprobs(hidden_NH, parts.head, targets_N, temperature=temperature, entropy=entropy)
    else:
        logprobs_N, entropy_N = chosen_logprobs(hidden_NH.float() / temperature, targets_N, entropy=entropy)
    mask_BT = length_mask([len(c) for c in completions], device)
    return CompletionLogprobs(_scatter(logprobs_N, mask_BT), None if entropy_N is None else _scatter(entropy_N, mask_BT), mask_BT)


def length_mask(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    """Bool ``[B, T]``, True on the first ``lengths[b]`` places of row b."""
    sizes = torch.tensor(lengths, device=device)
    return torch.arange(int(sizes.max()), device=device) < sizes.unsqueeze(-1)


def _scatter(flat_N: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    return torch.zeros(mask_BT.shape, dtype=flat_N.dtype, device=flat_N.device).masked_scatter(mask_BT, flat_N)


def pad(rows: Sequence[Ids], device: torch.device, *, left: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad token ids with 0 (never attended to). Returns (ids_BL, mask_BL int64)."""
    width = max(len(r) for r in rows)
    ids = torch.zeros((len(rows), width), dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for i, row in enumerate(rows):
        span = slice(width - len(row), width) if left else slice(0, len(row))
        ids[i, span] = torch.tensor(row, dtype=torch.long)
        mask[i, span] = 1
    return ids.to(device), mask.to(device)


def _device(module: Any) -> torch.device:
    return next(module.parameters()).device


def _padded(model: Any, parts: Parts | None, prompts: Sequence[Ids], completions: Sequence[Ids]) -> torch.Tensor:
    """Hidden states ``[N, H]`` (or logits ``[N, V]`` of a model that cannot be taken apart), right-padded input."""
    device = _device(model)
    rows = [(*p, *c[:-1]) for p, c in zip(prompts, completions)]
    ids_BL, mask_BL = pad(rows, device)
    at = [(b, len(p) - 1 + t) for b, (p, c) in enumerate(zip(prompts, completions)) for t in range(len(c))]
    index = torch.tensor(at, device=device)
    if parts is not None:
        out = parts.trunk(input_ids=ids_BL, attention_mask=mask_BL, use_cache=False).last_hidden_state
    else:
        out = model(input_ids=ids_BL, attention_mask=mask_BL, use_cache=False).logits
    return out[index[:, 0], index[:, 1]]


def _shared_hidden(trunk: Any, prompts: Sequence[Ids], completions: Sequence[Ids]) -> torch.Tensor:
    """Hidden states ``[N, H]``: prompts once, then completions attending to their prompt's keys and values.

    The cache is part of the graph, so the prompt receives the gradient of all its completions.
    """
    from transformers import DynamicCache

    device = _device(trunk)
    distinct = list(dict.fromkeys(tuple(p) for p in prompts))
    place = {p: i for i, p in enumerate(distinct)}
    rows = torch.tensor([place[tuple(p)] for p in prompts], device=device)
    ids_PL, mask_PL = pad(distinct, device, left=True)
    positions = (mask_PL.cumsum(-1) - 1).clamp(min=0)
    cache = DynamicCache(config=trunk.config)
    out = trunk(input_ids=ids_PL, attention_mask=mask_PL, position_ids=positions, past_key_values=cache, use_cache=True)
    first_BH = out.last_hidden_state[:, -1][rows]
    longest = max(len(c) for c in completions)
    if longest == 1:
        return first_BH
    cache.batch_select_indices(rows)
    ids_BL, own_mask = pad([c[:-1] for c in completions], device)
    lengths_B = torch.tensor([len(p) for p in prompts], device=device)
    positions = lengths_B.unsqueeze(-1) + torch.arange(ids_BL.shape[1], device=device)
    mask_BL = torch.cat([mask_PL[rows], own_mask], -1)
    rest = trunk(input_ids=ids_BL, attention_mask=mask_BL, position_ids=positions, past_key_values=cache,
                 use_cache=True).last_hidden_state
    both_BTH = torch.cat([first_BH.unsqueeze(1), rest], 1)
    return both_BTH[length_mask([len(c) for c in completions], device)]
