"""Log-probabilities of given completions under a policy, with gradient: what every trainer's forward is.

Suffixes: ``_B`` completions, ``_T`` completion tokens (right-padded grid), ``_N`` the same tokens flat, ``_H`` hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rlhf_core.models.layers.chunked_head import (
    CHUNK_BYTES,
    KEEP_BYTES,
    head_logprobs,
    logits_logprobs,
    plain_head_logprobs,
)
from rlhf_core.models.layers.handed_over import on_device
from rlhf_core.models.layers.packing import packed_hidden
from rlhf_core.models.layers.padded import Ids, pad_rows, padded_hidden, padded_logits, row_places
from rlhf_core.models.layers.prefix_sharing import distinct, shared_hidden
from rlhf_core.models.layers.rotary import check_length
from rlhf_core.models.layers.trunk_and_head import (
    TrunkAndHead,
    checkpointing,
    take_apart,
    trunk_and_head,
    trunk_called_once,
)
from rlhf_core.training.structure import structure

Masks = Sequence[Sequence[bool] | None]
"""Per completion a bool per token, or None for every token."""


@dataclass(frozen=True, slots=True)
class CompletionLogprobs:
    """A right-padded grid over completion tokens; padded places are 0, and so are tokens that were not asked for.

    Example:
        two completions of 3 and 1 tokens: ``mask_BT = [[1, 1, 1], [1, 0, 0]]``
    """

    logprobs_BT: torch.Tensor
    """float32, natural log, with gradient unless under ``torch.no_grad``."""
    entropy_BT: torch.Tensor | None
    """Nats; None unless asked for."""
    mask_BT: torch.Tensor
    """Bool, which places are tokens: from the lengths that were passed, never from ids."""
    hidden_NH: torch.Tensor | None = None
    """Hidden states that predict the tokens, row after row; None where the model does not split into trunk and head."""


def completion_logprobs(
    model: torch.nn.Module,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    masks: Masks | None = None,
    shared_prefix: bool = True,
    packed: bool = True,
    chunked: bool = True,
    chunk_bytes: int = CHUNK_BYTES,
    keep_bytes: int = KEEP_BYTES,
) -> CompletionLogprobs:
    """Log-probability of each completion token given its prompt and the tokens before it.

    The result depends on nothing but each row's own tokens: not on the other rows, on padding or packing, or on
    whether prompts are shared (differences are rounding, about 1e-6).

    Args:
        model: a transformers causal LM, or one wrapped by peft.
        prompts: token ids, at least one each; equal prompts are forwarded once when sharing.
        completions: token ids; may be empty, not all of them.
        temperature: divides the logits; pass the sampler's.
        entropy: also return each distribution's entropy, with gradient.
        masks: of each completion, the tokens whose log-probability is wanted: the head runs on no others, which get 0
            (results of tools, in an episode); None in place of a mask, or of all masks, wants every token.
        shared_prefix: run every distinct prompt once for all its completions. Off by itself where the model
            cannot do it (recurrent states), or where without packing gradient checkpointing forbids a cache.
        packed: lay all sequences end to end in one row, without padding, where the model's attention allows it.
        chunked: run the head on a chunk of tokens at a time, never all ``[N, V]`` logits at once.
        chunk_bytes: upper bound of the float32 logits held at a time.
        keep_bytes: logits up to this size are kept for the backward pass instead of computed twice.

    Returns:
        :class:`CompletionLogprobs` with ``T = max(len(c))``.

    Raises:
        ValueError: lists or masks of different lengths, an empty prompt, no completion token at all, temperature <= 0,
            or a sequence beyond the length from which on rotary frequencies change
            (:mod:`rlhf_core.models.layers.rotary`).
    """
    _check(prompts, completions, temperature)
    check_length(model, max(len(p) + len(c[:-1]) for p, c in zip(prompts, completions)))
    mask_BT, targets_N = _targets(completions, next(model.parameters()).device)
    wanted = _wanted(completions, masks)
    places = row_places([len(c) for c in completions], targets_N.device)
    wanted_N = None if wanted is None else on_device(wanted, targets_N.device)
    options: dict[str, Any] = {"temperature": temperature, "entropy": entropy}
    hidden_NH: torch.Tensor | None = None
    if not structure(model).split:
        logits_NV = padded_logits(model, prompts, completions)
        logprobs_N, entropy_N = logits_logprobs(*_only(wanted_N, logits_NV, targets_N), **options)
    else:
        hidden_NH = completion_hidden(model, prompts, completions, shared_prefix, packed)
        head, (fed_NH, targets_N) = trunk_and_head(model).head, _only(wanted_N, hidden_NH, targets_N)
        if chunked:
            options |= {"chunk_bytes": chunk_bytes, "keep_bytes": keep_bytes}
            logprobs_N, entropy_N = head_logprobs(fed_NH, head, targets_N, **options)
        else:
            logprobs_N, entropy_N = plain_head_logprobs(fed_NH, head, targets_N, **options)
    places = places if wanted_N is None else (places[0][wanted_N], places[1][wanted_N])
    entropy_BT = None if entropy_N is None else _grid(entropy_N, places, mask_BT)
    return CompletionLogprobs(_grid(logprobs_N, places, mask_BT), entropy_BT, mask_BT, hidden_NH)


def _check(prompts: Ids, completions: Ids, temperature: float) -> None:
    if len(prompts) != len(completions):
        raise ValueError(f"{len(prompts)} prompts but {len(completions)} completions")
    if not all(len(p) for p in prompts):
        raise ValueError("a prompt has no tokens; a causal model needs at least one to predict from")
    if not any(len(c) for c in completions):
        raise ValueError("no completion has a token")
    if temperature <= 0:
        raise ValueError(f"temperature must be positive for a log-probability, got {temperature}")


def _targets(completions: Ids, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """``mask_BT`` of the grid, from the lengths, and ``targets_N``, the tokens row after row."""
    sizes_B = on_device([len(c) for c in completions], device)
    mask_BT = torch.arange(max(map(len, completions)), device=device)[None, :] < sizes_B[:, None]
    return mask_BT, on_device([t for c in completions for t in c], device)


def _wanted(completions: Ids, masks: Masks | None) -> list[int] | None:
    """Which completion tokens are wanted, counted row after row; None where every one is."""
    if masks is None or all(mask is None for mask in masks):
        return None
    rows = [[True] * len(c) if mask is None else list(mask) for c, mask in zip(completions, masks, strict=True)]
    if wrong := [(len(c), len(row)) for c, row in zip(completions, rows) if len(c) != len(row)]:
        raise ValueError(f"a completion of {wrong[0][0]} tokens has a mask of {wrong[0][1]}")
    return [n for n, wanted in enumerate(wanted for row in rows for wanted in row) if wanted]


def _only(
    wanted_N: torch.Tensor | None, rows_NX: torch.Tensor, targets_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows and targets that are wanted; the very same tensors where all are."""
    return (rows_NX, targets_N) if wanted_N is None else (rows_NX[wanted_N], targets_N[wanted_N])


def completion_hidden(
    model: torch.nn.Module, prompts: Ids, completions: Ids, shared_prefix: bool = True, packed: bool = True
) -> torch.Tensor:
    """Hidden states ``[N, H]`` that predict each completion token, row after row; the model must split.

    Packed where asked for and possible, else with shared prompts where that is, else padded.
    """
    if packed and structure(model).pack:
        return packed_hidden(model, prompts, completions, shared_prefix)
    repeats = len(distinct(prompts)[0]) < len(prompts)
    if shared_prefix and repeats and not (checkpointing(model) or trunk_called_once(model)) and structure(model).share:
        return shared_hidden(model, prompts, completions)
    return padded_hidden(model, prompts, completions)


def _grid(values_N: torch.Tensor, places: tuple[torch.Tensor, torch.Tensor], mask_BT: torch.Tensor) -> torch.Tensor:
    """Values at their places of ``[B, T]``, zeros elsewhere."""
    return values_N.new_zeros(mask_BT.shape).index_put(places, values_N)


__all__ = ["CompletionLogprobs", "TrunkAndHead", "completion_hidden", "completion_logprobs", "pad_rows", "take_apart"]
