"""Pairs without texts and their net, from which a plan counts the memory of an update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_plugin_reward.net import fresh_net
from rlhf_plugin_reward.pairs import PairItem, PairModule


def pair_rehearsal(
    config: Any, ctx: BuildContext, sizes: Sequence[tuple[int, Sequence[int]]]
) -> tuple[PairModule, Sequence[Any]]:
    """Module and items as the trainer has them, for sizes (tokens of the prompt, tokens of each response) of pairs."""
    sharing = "none" if config.train_trunk == "full" else str(config.train_trunk)
    net = fresh_net(ctx.policy, 1, 0, sharing, copy_trunk=False)
    pairs: list[Any] = []
    for n, (prompt, responses) in enumerate(sizes):
        sides = [_ids(prompt, 2 * n) + _ids(count, 2 * n + side) for side, count in enumerate(responses[:2])]
        pairs.append(PairItem(str(n), sides[0][: config.max_length], sides[-1][: config.max_length]))
    return PairModule(net), pairs


def _ids(count: int, which: int) -> tuple[int, ...]:
    """Tokens that differ from those of the other pairs."""
    return tuple((which >> (2 * (n % 5))) & 3 for n in range(count))
