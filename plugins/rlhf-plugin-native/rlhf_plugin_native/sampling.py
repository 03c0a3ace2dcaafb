"""Drawing tokens: one uniform number per request and step decides, so neighbours do not matter.

Suffixes: ``_B`` live sequences, ``_V`` vocabulary, ``_K`` blocks of the vocabulary, ``_E`` entries of one block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import torch

from rlhf_core.models.layers.trunk_and_head import quiet
from rlhf_core.rollouts import SamplingParams

BLOCK = 256
"""Vocabulary entries summed together before the cumulative sum; a draw reads the vocabulary once."""


@contextlib.contextmanager
def sampling_forwards(model: Any) -> Generator[None, None, None]:
    """A context without dropout in which autocast casts weights once, but under ``torch.inference_mode``, where it
    keeps no cast; they must not change in it."""
    device = next(model.parameters()).device.type
    with quiet(model), torch.autocast(device, torch.bfloat16, enabled=False):
        yield


def uniforms(seeds: Sequence[int], count: int) -> torch.Tensor:
    """Uniform numbers ``[B, count]`` in [0, 1), float64; row b comes from ``seeds[b]`` alone (Philox)."""
    rows = [np.random.Generator(np.random.Philox(key=seed)).random(count) for seed in seeds]
    return torch.from_numpy(np.stack(rows))


def draw(
    logits_BV: torch.Tensor,
    uniform_B: torch.Tensor,
    params: SamplingParams,
    banned: torch.Tensor | None = None,
    left: Callable[[torch.Tensor], None] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""``(tokens_B, logprobs_B)`` by inverting the cumulative distribution at a float64 number in [0, 1) per row.

    What a log-probability means:

    - nothing truncates: :math:`\log\mathrm{softmax}(z/\tau)` over the *whole* vocabulary, which is what a trainer
      computes. A ban (``min_tokens``) redirects the draw but is not part of it.
    - top-k, top-p or min-p truncate: the renormalised distribution that was really drawn from, ban included; ``left``
      gets its logits, ``-inf`` where a token could not be drawn.
    - temperature 0: the most likely token, with its log-probability at temperature 1.
    """
    scaled_BV = logits_BV.float()
    if params.temperature not in (0, 1):
        scaled_BV = scaled_BV / params.temperature
    open_BV = scaled_BV if banned is None or not len(banned) else scaled_BV.index_fill(-1, banned, -torch.inf)
    if params.temperature == 0:
        return _with_logprob(open_BV.argmax(-1), scaled_BV, torch.logsumexp(scaled_BV, -1))
    if params.top_k > 0 or params.top_p < 1 or params.min_p > 0:
        open_BV = truncate(open_BV, params)
        if left is not None:
            left(open_BV)
        tokens_B, lse_B = _invert(open_BV, uniform_B)
        return _with_logprob(tokens_B, open_BV, lse_B)
    tokens_B, lse_B = _invert(open_BV, uniform_B)
    if open_BV is not scaled_BV and banned is not None:
        lse_B = torch.logaddexp(lse_B, torch.logsumexp(scaled_BV[:, banned], -1))
    return _with_logprob(tokens_B, scaled_BV, lse_B)


def _with_logprob(
    tokens_B: torch.Tensor, scaled_BV: torch.Tensor, lse_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return tokens_B, scaled_BV.gather(-1, tokens_B[:, None]).squeeze(-1) - lse_B


def truncate(scaled_BV: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Set what top-k, then top-p (Holtzman et al. 2020), then min-p (Nguyen et al. 2024) exclude to ``-inf``, one after
    the other; unnormalised, and at least one entry per row stays."""
    if 0 < params.top_k < scaled_BV.shape[-1]:
        least_B1 = scaled_BV.topk(params.top_k, -1).values[:, -1:]
        scaled_BV = scaled_BV.masked_fill(scaled_BV < least_B1, -torch.inf)
    if params.top_p < 1:
        ranked_BV, order_BV = torch.softmax(scaled_BV, -1).sort(-1, descending=True)
        before_BV = ranked_BV.double().cumsum(-1) - ranked_BV
        drop_BV = torch.zeros_like(scaled_BV, dtype=torch.bool).scatter(-1, order_BV, before_BV >= params.top_p)
        scaled_BV = scaled_BV.masked_fill(drop_BV, -torch.inf)
    if params.min_p > 0:
        floor_B1 = scaled_BV.amax(-1, keepdim=True) + float(np.log(params.min_p))
        scaled_BV = scaled_BV.masked_fill(scaled_BV < floor_B1, -torch.inf)
    return scaled_BV


def _invert(scaled_BV: torch.Tensor, uniform_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The token at which the cumulative distribution passes the uniform number, and the logsumexp; blocks are summed
    first, since a float64 cumulative sum over the vocabulary costs more than a small model's layers."""
    top_B1 = scaled_BV.amax(-1, keepdim=True)
    weight_BV = (scaled_BV - top_B1).exp_()
    sums_BK = _block_sums(weight_BV).double()
    upto_BK = sums_BK.cumsum(-1)
    total_B1 = upto_BK[:, -1:]
    target_B1 = uniform_B[:, None] * total_B1
    block_B1 = (upto_BK <= target_B1).sum(-1, keepdim=True).clamp(max=upto_BK.shape[1] - 1)
    rest_B1 = target_B1 - (upto_BK - sums_BK).gather(-1, block_B1)
    index_BE = block_B1 * BLOCK + torch.arange(BLOCK, device=scaled_BV.device)
    inside_BE = weight_BV.gather(-1, index_BE.clamp(max=scaled_BV.shape[1] - 1)).double()
    inside_BE = inside_BE.masked_fill(index_BE >= scaled_BV.shape[1], 0.0)
    entry_B1 = (inside_BE.cumsum(-1) <= rest_B1).sum(-1, keepdim=True)
    last_B1 = BLOCK - 1 - (inside_BE > 0).flip(-1).int().argmax(-1, keepdim=True)
    tokens_B = (block_B1 * BLOCK + torch.minimum(entry_B1, last_B1)).squeeze(-1)
    return tokens_B, (top_B1 + total_B1.log().to(top_B1.dtype)).squeeze(-1)


def _block_sums(weight_BV: torch.Tensor) -> torch.Tensor:
    """Sum of every ``BLOCK`` entries, the last block being whatever is left."""
    full = weight_BV.shape[1] // BLOCK * BLOCK
    sums_BK = weight_BV[:, :full].unflatten(1, (-1, BLOCK)).sum(-1) if full else weight_BV[:, :0]
    if full == weight_BV.shape[1]:
        return sums_BK
    return torch.cat([sums_BK, weight_BV[:, full:].sum(-1, keepdim=True)], -1)


MARGIN = 8
"""Tokens decoded beyond the longest stop string, so that a decoder's treatment of a text's start cannot matter."""


class StopStrings:
    """Detects that the newest token completes a stop string."""

    def __init__(self, tokenizer: Any, stop: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.stop = tuple(s for s in stop if s)
        self.window = max((len(s.encode()) for s in self.stop), default=0) + MARGIN
        self.last_characters = {s[-1] for s in self.stop}
        self._may_end: dict[int, bool] = {}

    def __bool__(self) -> bool:
        return bool(self.stop)

    def completed_by_last(self, tokens: Sequence[int]) -> bool:
        """True when the last token brings a stop string to its end, within ``len(stop in bytes) + 8`` tokens."""
        if not tokens or not self._can_end(tokens[-1]):
            return False
        tail = list(tokens[-self.window :])
        text, before = self.tokenizer.decode(tail), self.tokenizer.decode(tail[:-1])
        fresh = next((i for i, (a, b) in enumerate(zip(before, text)) if a != b), min(len(before), len(text)))
        return any(text.find(s, max(0, fresh - len(s) + 1)) >= 0 for s in self.stop)

    def _can_end(self, token: int) -> bool:
        """Could this token hold a stop string's last character? Decoded twice over, as decoders strip a leading
        space."""
        can_end = self._may_end.get(token)
        if can_end is None:
            text = self.tokenizer.decode([token, token])
            can_end = "�" in text or any(c in text for c in self.last_characters)
            self._may_end[token] = can_end
        return can_end
