"""From prompt and response texts to the log-probability of each response token.

Suffixes: ``_B`` sequences, ``_T`` positions (one less than tokens: the first is predicted by nothing).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rlhf_core.models import Formatter


def tokenize_prompt_and_output(
    prompt_strs: Sequence[str], output_strs: Sequence[str], tokenizer: Any
) -> dict[str, torch.Tensor]:
    """Tokenize prompts and outputs apart, join, pad on the right, and shift; no end token is added.

    Returns three tensors ``[B, T]`` with ``T = max(len(prompt + output)) - 1``: ``input_ids`` (all but the last token),
    ``labels`` (all but the first) and ``response_mask`` (bool, True where the *label* is an output token, made from the
    lengths: an output token that looks like padding counts). Raises ValueError on different numbers of both.
    """
    if len(prompt_strs) != len(output_strs):
        raise ValueError(f"{len(prompt_strs)} prompts but {len(output_strs)} outputs")
    prompts = [Formatter.encode_raw(tokenizer, text) for text in prompt_strs]
    outputs = [tokenizer.encode(text, add_special_tokens=False) for text in output_strs]
    filler = next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0)
    width = max((len(p) + len(o) for p, o in zip(prompts, outputs)), default=1)
    rows = [[*p, *o, *[filler] * (width - len(p) - len(o))] for p, o in zip(prompts, outputs)]
    ids_BL = torch.tensor(rows, dtype=torch.long).reshape(len(rows), width)
    mask_BL = torch.zeros(ids_BL.shape, dtype=torch.bool)
    for row, (prompt, output) in enumerate(zip(prompts, outputs)):
        mask_BL[row, len(prompt) : len(prompt) + len(output)] = True
    return {"input_ids": ids_BL[:, :-1], "labels": ids_BL[:, 1:], "response_mask": mask_BL[:, 1:]}


def compute_entropy(logits: torch.Tensor) -> torch.Tensor:
    """Entropy of each next-token distribution, in nats: ``[B, T, V]`` to ``[B, T]``, with gradient."""
    logp = torch.log_softmax(logits.float(), dim=-1)
    return -(logp.exp() * logp.clamp(min=torch.finfo(logp.dtype).min)).sum(-1)


def get_response_log_probs(
    model: Any, input_ids: torch.Tensor, labels: torch.Tensor, return_token_entropy: bool = False
) -> dict[str, torch.Tensor]:
    """Log-probability of every label: ``log_probs`` and, if asked for, ``token_entropy``, float32 ``[B, T]``, unmasked.

    ``model`` is a causal LM of transformers, in train or eval mode as it is; ``input_ids`` and ``labels`` are
    ``[B, T]``, padded on the right (then no real token ever looks at padding).
    """
    logits_BTV = model(input_ids).logits
    logp_BTV = torch.log_softmax(logits_BTV.float(), dim=-1)
    output = {"log_probs": logp_BTV.gather(-1, labels.unsqueeze(-1)).squeeze(-1)}
    return {**output, "token_entropy": compute_entropy(logits_BTV)} if return_token_entropy else output
