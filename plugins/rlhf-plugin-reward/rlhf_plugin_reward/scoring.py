"""Scores of many conversations: end to end without padding where the model allows it, else sorted by length."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rlhf_core.data import DatasetError
from rlhf_core.distributed import ShardedForward, Strategy
from rlhf_core.models import has_no_weights, last_token_hidden
from rlhf_core.training import NoGradForward
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


def keep_features(net: RewardNet, ids: Ids, strategy: Strategy) -> None:
    """Have a frozen trunk see conversations once, before its head learns; the ranks share the work.

    The batches depend on ``ids`` alone, so that a resumed run has the same features to the last bit. Of a trunk that
    has no weights yet each rank reads its part for as long as this takes.
    """
    rows = sorted({tuple(row) for row in ids})
    if not rows:
        return
    if isinstance(strategy, ShardedForward) and len(rows) > MOST_KEPT:
        raise DatasetError(
            f"a frozen trunk keeps features of {MOST_KEPT} conversations, and there are {len(rows)}",
            why="for the others each rank would call the trunk, whose weights are divided, by itself",
            fix="--set strategy=ddp, --set trainer.train_trunk=lora, or fewer examples (dataset.limit)",
        )
    rows = rows[:MOST_KEPT]
    batches = [[rows[i] for i in batch] for batch in by_beginning(rows, ROW_TOKENS)]
    of_rank = [batches[rank :: strategy.world_size] for rank in range(strategy.world_size)]
    if has_no_weights(net):
        net.cached_features.update(divided_features(net, of_rank[strategy.rank], strategy))
        gc.collect()  # shards hold on to each other
    else:
        for batch in of_rank[strategy.rank]:
            net.keep(batch)
    if strategy.world_size > 1:
        features = [net.cached_features[row] for batch in of_rank[strategy.rank] for row in batch]
        shards = strategy.gather_objects(torch.stack(features) if features else ())  # every rank knows whose they are
        for rank, features_NH in enumerate(shards):
            net.cached_features.update(zip((row for batch in of_rank[rank] for row in batch), features_NH, strict=True))


def divided_features(
    net: RewardNet, batches: Sequence[Sequence[tuple[int, ...]]], strategy: Strategy
) -> dict[tuple[int, ...], torch.Tensor]:
    """Features ``[H]`` of this rank's conversations, from a copy of a trunk whose weights the ranks divide.

    Args:
        net: without weights; it stays so.
        batches: of this rank; each is one forward.
        strategy: divides the copy; all ranks make as many forwards.
    """
    forward = NoGradForward(strategy, FrozenTrunk(copy.deepcopy(net.trunk)), frozen=True)
    rows = [row for batch in batches for row in batch]
    ends = list(accumulate(map(len, batches), initial=0))
    cuts = [list(range(start, end)) for start, end in pairwise(ends)]

    def compute(module: Any, micro: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
        hidden_BH = last_token_hidden(module.trunk, micro, without_padding=net.without_padding).cpu()
        return [feature.clone() for feature in hidden_BH]

    features = forward.rows(rows, lambda _: cuts, compute)
    forward.release()
    return dict(zip(rows, features, strict=True))


class FrozenTrunk(torch.nn.Module):
    """A trunk that is called inside of a forward of all ranks.

    Args:
        trunk: never trained.
    """

    def __init__(self, trunk: torch.nn.Module) -> None:
        super().__init__()
        self.trunk = trunk

    def forward(self, items: Sequence[Any], compute: Callable[[Any, Sequence[Any]], Any]) -> Any:
        """``compute(self, items)``."""
        return compute(self, items)


@torch.inference_mode()
def score_ids(net: RewardNet, ids: Ids, batch_tokens: int) -> npt.NDArray[np.float64]:
    """Raw scores ``[N, K]`` in the order of ``ids``; ``batch_tokens`` as of :func:`score_batches`."""
    out = np.zeros((len(ids), net.head.out_features))
    for rows in score_batches(net, ids, batch_tokens):
        out[rows] = net([ids[i] for i in rows]).double().cpu().numpy()
    return out


def score_batches(net: RewardNet, ids: Ids, batch_tokens: int) -> list[list[int]]:
    """Conversations of each forward that scores them, by place.

    Args:
        net: decides whether they are padded.
        ids: of each conversation.
        batch_tokens: bounds a forward: padded tokens, or, without padding, tokens before common beginnings are merged.
    """
    device = net.head.weight.device
    if net.packs:
        return list(by_beginning(ids, on_device(batch_tokens, ROW_TOKENS, device)))
    return list(by_length(ids, on_device(batch_tokens, PADDED_TOKENS, device)))
