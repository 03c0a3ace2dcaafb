"""Sequences that are decoded together.

Suffixes: ``_P`` distinct prompts, ``_B`` live sequences, ``_L`` positions so far (left-padded prompts), ``_R``
requests of the wave, ``_T`` completion tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlhf_core.rollout.cache import make_cache
from rlhf_core.rollout.sampling import draw, uniforms
from rlhf_core.rollout.stop import StopStrings
from rlhf_core.types import FinishReason, RolloutRequest, SamplingParams

COMPACT_BELOW = 0.75
"""Finished sequences leave the batch once fewer than this share of it is alive."""
CUDA_STRIDE = 8
"""Tokens drawn on a GPU between two looks at which sequences have ended (each look waits for the device)."""


@dataclass(frozen=True)
class Drawn:
    """What one request got, before it is decoded to text."""

    tokens: list[int]
    logprobs_T: np.ndarray[Any, np.dtype[np.float32]]
    finish: FinishReason


class Wave:
    """Prompts are read once each; rows of finished sequences are dropped from time to time.

    Args:
        forward: runs the model; see :meth:`rlhf_core.rollout.native.NativeEngine.logits`.
        requests: at least one.
        sampling: for all of them.
        ends: token ids that end a completion.
        stop: stop strings.
        cache_config: the decoder's config, from which the cache is made.
        device: where the model is.
    """

    def __init__(self, forward: Any, requests: Sequence[RolloutRequest], sampling: SamplingParams, ends: Sequence[int],
                 stop: StopStrings, cache_config: Any, device: torch.device) -> None:
        self.forward, self.sampling, self.stop, self.device = forward, sampling, stop, device
        self.ends = torch.tensor(list(ends), dtype=torch.long, device=device)
        self.stride = 1 if stop or device.type == "cpu" else CUDA_STRIDE
        count = len(requests)
        self.tokens_RT = torch.zeros((count, sampling.max_tokens), dtype=torch.long, device=device)
        self.logprobs_RT = torch.zeros((count, sampling.max_tokens), device=device)
        self.lengths_R = torch.full((count,), sampling.max_tokens, device=device)
        self.ended_R = torch.zeros(count, dtype=torch.bool, device=device)
        self.stopped: set[int] = set()
        self.alive_B = torch.arange(count, device=device)
        self.uniforms_RT = uniforms([r.seed for r in requests], sampling.max_tokens).to(device)
        self._read_prompts([r.prompt_ids for r in requests], cache_config)

    def _read_prompts(self, prompts: Sequence[Sequence[int]], cache_config: Any) -> None:
        """One forward over the distinct prompts; every request then gets its own copy of the cache."""
        distinct = list(dict.fromkeys(tuple(p) for p in prompts))
        index = {p: i for i, p in enumerate(distinct)}
        rows_B = torch.tensor([index[tuple(p)] for p in prompts], device=self.device)
        width = max(map(len, distinct))
        ids_PL = torch.tensor([[0] * (width - len(p)) + list(p) for p in distinct], device=self.device)
        lengths_P = torch.tensor([len(p) for p in distinct], device=self.device)
        slots_L = torch.arange(width + self.sampling.max_tokens, device=self.device)
        self.ragged = len({len(p) for p in distinct}) > 1
        self.mask_BL = (slots_L[None, :] >= (width - lengths_P)[:, None]).long()
        self.cache, self.width = make_cache(cache_config), width
        positions_PL = (slots_L[None, :width] - (width - lengths_P)[:, None]).clamp(min=0)
        logits_PV = self.forward(ids_PL, self._mask(), positions_PL, self.cache)
        self.cache.batch_select_indices(rows_B)
        self.logits_BV, self.mask_BL, self.positions_B = logits_PV[rows_B], self.mask_BL[rows_B], lengths_P[rows_B]

    def _mask(self) -> torch.Tensor | None:
        """Which keys are real, for as many as there are now; prompts of one length need none."""
        return self.mask_BL[:, : self.width] if self.ragged else None

    def run(self) -> list[Drawn]:
        """Decode until every sequence has ended or has ``max_tokens``."""
        for step in range(self.sampling.max_tokens):
            tokens_B = self._draw(step)
            if (step + 1) % self.stride == 0:
                live = self._look(step)
                if not live.any():
                    break
                tokens_B = self._compact(tokens_B, live)
            if step + 1 < self.sampling.max_tokens:
                self._feed(tokens_B)
        return self._results()

    def _draw(self, step: int) -> torch.Tensor:
        """Draw a token for every row, finished ones included (what they draw is cut off later)."""
        early = step + 1 < self.sampling.min_tokens
        tokens_B, logprobs_B = draw(self.logits_BV, self.uniforms_RT[self.alive_B, step], self.sampling,
                                    self.ends if early else None)
        self.tokens_RT[self.alive_B, step] = tokens_B
        self.logprobs_RT[self.alive_B, step] = logprobs_B
        ends_now_B = torch.isin(tokens_B, self.ends) & ~self.ended_R[self.alive_B]
        self.lengths_R[self.alive_B[ends_now_B]] = step + 1
        self.ended_R[self.alive_B[ends_now_B]] = True
        return tokens_B

    def _look(self, step: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Check stop strings and return which rows are alive. On a GPU this waits for the device."""
        ended_B = self.ended_R[self.alive_B].cpu().numpy()
        if self.stop and step + 1 >= self.sampling.min_tokens:
            rows = self.alive_B[torch.from_numpy(~ended_B).to(self.device)]
            recent = self.tokens_RT[rows, max(0, step + 1 - self.stop.window) : step + 1].tolist()
            hits = [row for row, tail in zip(rows.tolist(), recent) if self.stop.completed_by_last(tail)]
            if hits:
                self.lengths_R[hits], self.ended_R[hits] = step + 1, True
                self.stopped.update(hits)
                ended_B = self.ended_R[self.alive_B].cpu().numpy()
        return ~ended_B

    def _compact(self, tokens_B: torch.Tensor, live: np.ndarray[Any, np.dtype[np.bool_]]) -> torch.Tensor:
        """Drop finished rows when enough are."""
        if live.mean() >= COMPACT_BELOW:
            return tokens_B
        keep = torch.from_numpy(np.flatnonzero(live)).to(self.device)
        self.cache.batch_select_indices(keep)
        self.mask_BL, self.positions_B, self.alive_B = self.mask_BL[keep], self.positions_B[keep], self.alive_B[keep]
        return tokens_B[keep]

    def _feed(self, tokens_B: torch.Tensor) -> None:
        """Run the drawn tokens."""
        self.width += 1
        self.logits_BV = self.forward(tokens_B[:, None], self._mask(), self.positions_B[:, None], self.cache)
        self.positions_B = self.positions_B + 1

    def _results(self) -> list[Drawn]:
        ended, lengths = self.ended_R.tolist(), self.lengths_R.tolist()
        tokens, logprobs_RT = self.tokens_RT.tolist(), self.logprobs_RT.float().cpu().numpy()
        reasons = [FinishReason.STOP if i in self.stopped else FinishReason.EOS if e else FinishReason.LENGTH
                   for i, e in enumerate(ended)]
        return [Drawn(tokens[i][:n], logprobs_RT[i, :n].copy(), reasons[i]) for i, n in enumerate(lengths)]
