"""Drawing tokens. One uniform number per request and step decides, so neighbours do not matter.

Suffixes: ``_B`` live sequences, ``_V`` vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch

from rlhf_core.types import SamplingParams


def uniforms(seeds: list[int], count: int) -> torch.Tensor:
    """Uniform numbers ``[B, count]`` in [0, 1), row b from ``seeds[b]`` alone (Philox counter generator)."""
    rows = [np.random.Generator(np.random.Philox(key=seed)).random(count) for seed in seeds]
    return torch.from_numpy(np.stack(rows))


def truncate(logprobs_BV: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Apply top-k, top-p and min-p and renormalise; the input is returned when all are off."""
    if params.top_k <= 0 and params.top_p >= 1 and params.min_p <= 0:
        return logprobs_BV
    keep = torch.ones_like(logprobs_BV, dtype=torch.bool)
    if 0 < params.top_k < logprobs_BV.shape[-1]:
        keep &= logprobs_BV >= logprobs_BV.topk(params.top_k, -1).values[:, -1:]
    if params.min_p > 0:
        keep &= logprobs_BV >= logprobs_BV.amax(-1, keepdim=True) + float(np.log(params.min_p))
    if params.top_p < 1:
        ranked, order = logprobs_BV.sort(-1, descending=True)
        before = ranked.exp().cumsum(-1) - ranked.exp()
        keep &= torch.zeros_like(keep).scatter(-1, order, before < params.top_p)
    return torch.log_softmax(logprobs_BV.masked_fill(~keep, -torch.inf), -1)


def draw(logits_BV: torch.Tensor, uniform_B: torch.Tensor, params: SamplingParams,
         banned: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token per row by inverting the cumulative distribution.

    Args:
        logits_BV: raw logits.
        uniform_B: float64 numbers in [0, 1).
        params: temperature 0 takes the most likely token.
        banned: token ids that may not be drawn now (end tokens before ``min_tokens``).

    Returns:
        (tokens_B, logprobs_B) under the processed distribution: temperature and truncation applied.
        The ban is not part of it, so that trainer and engine agree; it only redirects the draw.
    """
    logits_BV = logits_BV.float()
    scaled = logits_BV if params.temperature in (0, 1) else logits_BV / params.temperature
    logprobs_BV = truncate(torch.log_softmax(scaled, -1), params)
    allowed_BV = logprobs_BV
    if banned is not None and len(banned):
        allowed_BV = torch.log_softmax(logprobs_BV.index_fill(-1, banned, -torch.inf), -1)
    if params.temperature == 0:
        tokens_B = allowed_BV.argmax(-1)
    else:
        cumulative = allowed_BV.double().exp().cumsum(-1)
        point = (uniform_B * cumulative[:, -1]).unsqueeze(-1)
        tokens_B = torch.searchsorted(cumulative, point, right=True).squeeze(-1).clamp(max=logits_BV.shape[-1] - 1)
    return tokens_B, logprobs_BV.gather(-1, tokens_B.unsqueeze(-1)).squeeze(-1)
