"""Scores of many conversations: sorted by length, batched by padded tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from rlhf_plugin_reward.net import RewardNet


def by_length(ids: Sequence[Sequence[int]], batch_tokens: int) -> Iterator[list[int]]:
    """Yield index batches of similar length with at most ``batch_tokens`` padded tokens (at least one row each)."""
    batch: list[int] = []
    for i in sorted(range(len(ids)), key=lambda i: len(ids[i])):
        if batch and len(ids[i]) * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


@torch.inference_mode()
def score_ids(
    net: RewardNet, ids: Sequence[Sequence[int]], batch_tokens: int, beat: Callable[[], None] = lambda: None
) -> npt.NDArray[np.float64]:
    """Raw scores ``[N, K]`` in the order of ``ids``; ``beat`` is called after every batch."""
    out = np.zeros((len(ids), net.head.out_features))
    for rows in by_length(ids, batch_tokens):
        out[rows] = net([ids[i] for i in rows]).double().cpu().numpy()
        beat()
    return out
