"""A pad token that ends no conversation: transformers' classifiers pool the last token that is not padding."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from rlhf_core.models import Formatter

ADDED = "<|pad|>"


def with_pad_token(tokenizer: Any) -> Any:
    """The tokenizer, or a copy whose pad token ends no conversation: a special one that is named so, or a new one."""
    ends = {tokenizer.eos_token_id, *Formatter(tokenizer, "auto").closing}
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id not in ends:  # without one, nothing is padded
        return tokenizer
    own = copy.deepcopy(tokenizer)
    special = {token.content: i for i, token in own.added_tokens_decoder.items() if token.special and i not in ends}
    own.add_special_tokens({"pad_token": next((text for text in special if "pad" in text.lower()), ADDED)})
    return own


def taller(weight: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A weight with rows of zeros below, where another of its kind has more."""
    missing = like.shape[0] - weight.shape[0] if weight.dim() == 2 else 0
    return torch.cat([weight, weight.new_zeros(missing, weight.shape[1])]) if missing > 0 else weight


def without_padding(row: Sequence[int], pad_id: int | None) -> Sequence[int]:
    """A conversation up to the last token that transformers does not take for padding."""
    last = next((n for n in range(len(row), 0, -1) if row[n - 1] != pad_id), 1)
    return row[:last]
