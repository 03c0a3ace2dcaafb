"""Scores of many conversations: end to end without padding where the model allows it, else sorted by length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from rlhf_core.sdk import Strategy
from rlhf_plugin_reward.net import MOST_KEPT, RewardNet

Ids = Sequence[Sequence[int]]
ROW_TOKENS = 4096
"""Tokens of one packed row on a CPU: more do not make it faster, and take memory."""
PADDED_TOKENS = 1024
"""Padded tokens of one forward on a CPU: with 16,384 a 135M model took twice as long (docs/lab-notes.md)."""


def on_device(batch_tokens: int, most_on_cpu: int, device: torch.device) -> int:
    """Tokens of a forward: ``batch_tokens``, on a CPU no more than its caches can use."""
    return min(batch_tokens, most_on_cpu) if device.type == "cpu" else batch_tokens


def by_length(ids: Ids, batch_tokens: int) -> Iterator[list[int]]:
    """Yield index batches of similar length with at most ``batch_tokens`` padded tokens (at least one row each)."""
    batch: list[int] = []
    for i in sorted(range(len(ids)), key=lambda i: len(ids[i])):
        if batch and len(ids[i]) * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def by_beginning(ids: Ids, batch_tokens: int) -> Iterator[list[int]]:
    """Yield index batches of at most ``batch_tokens`` tokens (at least one row), equal beginnings side by side."""
    batch: list[int] = []
    total = 0
    for i in sorted(range(len(ids)), key=lambda i: tuple(ids[i])):
        if batch and total + len(ids[i]) > batch_tokens:
            yield batch
            batch, total = [], 0
        batch.append(i)
        total += len(ids[i])
    if batch:
        yield batch


def keep_features(net: RewardNet, ids: Ids, strategy: Strategy, beat: Callable[[], None] = lambda: None) -> None:
    """Have a frozen trunk see conversations once, before its head learns; the ranks share the work.

    The batches depend on ``ids`` alone, so that a resumed run has the same features to the last bit.
    """
    rows = sorted({tuple(row) for row in ids})[:MOST_KEPT]
    for batch in list(by_beginning(rows, ROW_TOKENS))[strategy.rank :: strategy.world_size]:
        net.keep([rows[i] for i in batch])
        beat()
    for features in strategy.gather_objects(net.cached_features):
        net.cached_features.update(features)


@torch.inference_mode()
def score_ids(
    net: RewardNet, ids: Ids, batch_tokens: int, beat: Callable[[], None] = lambda: None
) -> npt.NDArray[np.float64]:
    """Raw scores ``[N, K]`` in the order of ``ids``; ``beat`` is called after every batch.

    ``batch_tokens`` bounds a forward: padded tokens, or, without padding, tokens before common beginnings are merged.
    """
    out = np.zeros((len(ids), net.head.out_features))
    device = net.head.weight.device
    if net.packs:
        batches = by_beginning(ids, on_device(batch_tokens, ROW_TOKENS, device))
    else:
        batches = by_length(ids, on_device(batch_tokens, PADDED_TOKENS, device))
    for rows in batches:
        out[rows] = net([ids[i] for i in rows]).double().cpu().numpy()
        beat()
    return out
