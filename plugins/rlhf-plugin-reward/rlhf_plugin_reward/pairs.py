"""Tokenized preference pairs and the module that scores them.

Suffixes: ``_B`` pairs, ``_K`` heads (members) scored at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rlhf_core.config import BuildContext
from rlhf_core.data import PreferencePair
from rlhf_core.losses import PairBatch
from rlhf_core.models import on_device
from rlhf_plugin_reward.encoding import Encoder
from rlhf_plugin_reward.net import RewardNet, fresh_net


@dataclass(frozen=True, slots=True)
class PairItem:
    name: str
    chosen_ids: tuple[int, ...]
    rejected_ids: tuple[int, ...]
    margin: float = 0.0
    counts_K: tuple[float, ...] = (1.0,)
    """How often the pair is in each member's bootstrap sample."""

    @property
    def tokens(self) -> int:
        return len(self.chosen_ids) + len(self.rejected_ids)


def encode_pairs(pairs: Sequence[PreferencePair], encoder: Encoder, counts: Counter[str]) -> list[PairItem]:
    """Tokenize pairs; ``counts`` gets those that were cut: in the prompt, or in the answer as well."""
    items: list[PairItem] = []
    on_right = encoder.view.truncation == "right"
    for pair in pairs:
        sides = [
            encoder.sides(pair.prompt, text, pair.tools, turn)
            for text, turn in ((pair.chosen, pair.chosen_turn), (pair.rejected, pair.rejected_turn))
        ]
        too_long = any(len(prompt) + len(answer) > encoder.max_length for prompt, answer in sides)
        if too_long and (on_right or any(len(answer) > encoder.max_length for _, answer in sides)):
            counts["pairs_answer_cut"] += 1
        elif too_long:
            counts["pairs_prompt_cut"] += 1
        chosen, rejected = (encoder.cut(*side) for side in sides)
        items.append(PairItem(pair.id, chosen, rejected, pair.margin))
    return items


def first_of_mixture(pairs: Sequence[PreferencePair], weights: Mapping[str, float], count: int) -> list[PreferencePair]:
    """The first ``count`` pairs of a mixture: each source gives its weight's share, or all it has."""
    available = Counter(p.source for p in pairs)
    quota: Counter[str] = Counter()
    for _ in range(min(count, len(pairs))):
        open_sources = [s for s in available if quota[s] < available[s]]
        quota[min(open_sources, key=lambda s: (quota[s] + 1) / weights[s])] += 1
    taken_by_source: Counter[str] = Counter()
    first_pairs: list[PreferencePair] = []
    for pair in pairs:
        taken_by_source[pair.source] += 1
        if taken_by_source[pair.source] <= quota[pair.source]:
            first_pairs.append(pair)
    return first_pairs


def bootstrap(items: Sequence[PairItem], members: int, seed: int) -> list[PairItem]:
    """Give every pair its multiplicity in each member's bootstrap sample (n draws with replacement)."""
    size = len(items)

    def multiplicities(member: int) -> npt.NDArray[np.intp]:
        drawn = np.random.default_rng([seed, member]).integers(0, size, size)
        return np.bincount(drawn, minlength=size)

    counts_KN = np.stack([multiplicities(k) for k in range(members)]).astype(float)
    return [replace(item, counts_K=tuple(counts_KN[:, n])) for n, item in enumerate(items)]


class PairModule(torch.nn.Module):
    """Scores both sides of pairs in one forward; K heads give K pairs each."""

    def __init__(self, net: RewardNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, items: Sequence[PairItem], compute: Callable[[Any, Sequence[Any]], Any] | None = None) -> Any:
        """Return the batch of a micro-batch; with ``compute``, ``compute(self, items)`` instead."""
        return self.batch(items) if compute is None else compute(self, items)

    def batch(self, items: Sequence[PairItem]) -> PairBatch:
        scores = self.net([*(i.chosen_ids for i in items), *(i.rejected_ids for i in items)])
        chosen_BK, rejected_BK = scores[: len(items)], scores[len(items) :]
        heads = scores.shape[1]
        margin_B = on_device([i.margin for i in items], scores.device, torch.float32)
        counts_BK = on_device([i.counts_K for i in items], scores.device, scores.dtype)
        return PairBatch(
            chosen_BK.flatten(),
            rejected_BK.flatten(),
            margin_B=margin_B.repeat_interleave(heads),
            weights_B=counts_BK.expand(-1, heads).flatten(),
        )


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
