"""What is known of the sequences that are decoded together, one row each.

Suffixes: ``_B`` rows, ``_T`` completion tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from rlhf_core.rollouts import FinishReason
from rlhf_plugin_native.sampling import uniforms

Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class Drawn:
    """What one request got, before it is decoded to text."""

    tokens: list[int]
    logprobs_T: np.ndarray[Any, np.dtype[np.float32]]
    finish: FinishReason


@dataclass
class DecodeState:
    """State on the device; every tensor has one entry per row, so rows are added and removed in all of them."""

    request_B: torch.Tensor
    """Which request it is, by its place in the order of admission."""
    last_B: torch.Tensor
    """The last position it may be fed; rows that ended stay there while they wait to be dropped."""
    count_B: torch.Tensor
    """Tokens drawn so far."""
    length_B: torch.Tensor
    """Tokens of the completion: the limit, until an end is drawn."""
    held_B: torch.Tensor
    """Positions it has in the cache, which is also the position of its next token."""
    stopped_B: torch.Tensor
    """Whether a stop string ended it."""
    uniforms_BT: torch.Tensor
    tokens_BT: torch.Tensor
    logprobs_BT: torch.Tensor

    def __len__(self) -> int:
        return len(self.request_B)

    def select(self, keep_B: torch.Tensor) -> DecodeState:
        """Those rows, in that order."""
        return DecodeState(*(getattr(self, f.name)[keep_B] for f in fields(self)))

    def join(self, other: DecodeState) -> DecodeState:
        """These rows and then the other's."""
        return DecodeState(*(torch.cat([getattr(self, f.name), getattr(other, f.name)]) for f in fields(self)))

    def record(self, tokens_B: torch.Tensor, logprobs_B: torch.Tensor, ends: torch.Tensor) -> None:
        """Note the tokens drawn for every row; rows that have ended stay as they are."""
        going_B1 = (self.count_B < self.length_B)[:, None]
        place_B1 = self.place()
        for table_BT, new_B in ((self.tokens_BT, tokens_B), (self.logprobs_BT, logprobs_B)):
            table_BT.scatter_(1, place_B1, torch.where(going_B1, new_B[:, None], table_BT.gather(1, place_B1)))
        self.count_B += 1
        ends_now_B = torch.isin(tokens_B, ends) & going_B1[:, 0]
        self.length_B = torch.where(ends_now_B, self.count_B, self.length_B)

    def place(self) -> torch.Tensor:
        """Column of the next token, ``[B, 1]``."""
        return self.count_B[:, None].clamp(max=self.tokens_BT.shape[1] - 1)

    def results(self, which: Mask, ends: set[int]) -> dict[int, Drawn]:
        """What the finished rows got, by request."""
        rows = torch.from_numpy(np.flatnonzero(which)).to(self.request_B.device)
        done = self.select(rows)
        logprobs = done.logprobs_BT.cpu().numpy()
        drawn_by_request: dict[int, Drawn] = {}
        for i, (request, tokens, n, stopped) in enumerate(
            zip(done.request_B.tolist(), done.tokens_BT.tolist(), done.length_B.tolist(), done.stopped_B.tolist())
        ):
            ended = FinishReason.EOS if tokens[n - 1] in ends else FinishReason.LENGTH
            finish = FinishReason.STOP if stopped else ended
            drawn_by_request[request] = Drawn(tokens[:n], logprobs[i, :n].copy(), finish)
        return drawn_by_request


def new_rows(
    first: int,
    limits: Sequence[int],
    seeds: Sequence[int],
    prompt_lengths: Sequence[int],
    width: int,
    device: torch.device,
) -> DecodeState:
    """DecodeState that have read their prompts and drawn nothing yet.

    Args:
        first: number of the first request; the others follow.
        limits: tokens each may have.
        seeds: each request's own.
        prompt_lengths: tokens of each prompt.
        width: columns of the tables, at least the largest limit.
        device: where the model is.
    """
    count = len(seeds)
    limit_B, held_B = torch.tensor(list(limits), device=device), torch.tensor(list(prompt_lengths), device=device)
    return DecodeState(
        request_B=torch.arange(first, first + count, device=device),
        last_B=held_B + limit_B - 1,
        length_B=limit_B,
        count_B=torch.zeros(count, dtype=torch.long, device=device),
        held_B=held_B,
        stopped_B=torch.zeros(count, dtype=torch.bool, device=device),
        uniforms_BT=uniforms(seeds, width).to(device),
        tokens_BT=torch.zeros((count, width), dtype=torch.long, device=device),
        logprobs_BT=torch.zeros((count, width), device=device),
    )
