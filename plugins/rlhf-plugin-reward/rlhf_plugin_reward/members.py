"""Members of an ensemble, trained, scored and written by all ranks of a run together.

Suffixes: ``_N`` conversations, ``_K`` heads.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlhf_core.data import whole_folder, write_json
from rlhf_core.distributed import LocalStrategy, Strategy
from rlhf_core.distributed.whole_weights import gather_weights
from rlhf_core.models import has_meta_weights
from rlhf_core.training import Learner, NoGradForward
from rlhf_plugin_reward.classifier_files import save_classifier
from rlhf_plugin_reward.config import EnsembleConfig, RewardModelConfig
from rlhf_plugin_reward.encoding import View
from rlhf_plugin_reward.loss import BradleyTerry
from rlhf_plugin_reward.net import RewardNet
from rlhf_plugin_reward.pairs import PairItem, PairModule
from rlhf_plugin_reward.reward import Floats, Ids, keep_features, score_batches
from rlhf_plugin_reward.store import save_shared

Advance = Callable[[int], None]


def ignore(count: int) -> None:
    """Nobody watches."""


class Member(NamedTuple):
    """A trained net, or one with the heads of all members."""

    net: RewardNet
    forward: NoGradForward
    """Of what the strategy made of it."""


def updates_of(config: EnsembleConfig, pairs: int) -> int:
    return max(1, math.ceil(pairs * config.epochs / config.batch_size))


def fit(
    config: EnsembleConfig, net: RewardNet, items: Sequence[PairItem], seed: int, device: str, advance: Advance = ignore
) -> RewardNet:
    """:func:`fit_member` in this process alone; returns the net."""
    return fit_member(config, net, items, seed, LocalStrategy(device), "", advance).net


def fit_member(
    config: EnsembleConfig,
    net: RewardNet,
    items: Sequence[PairItem],
    seed: int,
    strategy: Strategy,
    path: str,
    advance: Advance = ignore,
) -> Member:
    """Run the core's update over seeded permutations of the pairs; all ranks call it, and share every batch."""
    steps = updates_of(config, len(items))
    settings = RewardModelConfig(
        optimizer=config.optimizer, micro_batch_size=config.micro_batch_size, batch_size=config.batch_size
    )
    if not has_meta_weights(net):
        net.to(strategy.device).can_pack()  # tried here, where every rank has the weights
    if net.frozen:
        keep_features(net, [ids for i in items for ids in (i.chosen_ids, i.rejected_ids)], strategy)
    loss = BradleyTerry.from_config(config.loss)
    learner = Learner.preparing(PairModule(net), loss, strategy, settings, steps, path)
    order: list[int] = []
    for step in range(steps):
        while len(order) < config.batch_size:
            order += np.random.default_rng([seed, step]).permutation(len(items)).tolist()
        batch, order = [items[i] for i in order[: config.batch_size]], order[config.batch_size :]
        learner.update(batch[strategy.rank :: strategy.world_size])
        advance(1)
    learner.keep_final_weights()
    net.eval()
    return Member(net, learner.no_grad)


def member_scores(members: Sequence[Member], ids: Ids, batch_tokens: int, strategy: Strategy) -> Floats:
    """Raw scores ``[N, K]`` of all members, on every rank; all ranks call it, and share the conversations."""
    return np.concatenate([_scores(member, ids, batch_tokens, strategy) for member in members], 1)


def _scores(member: Member, ids: Ids, batch_tokens: int, strategy: Strategy) -> Floats:
    batches = score_batches(member.net, ids, batch_tokens)[strategy.rank :: strategy.world_size]
    rows = [i for batch in batches for i in batch]
    cuts = [list(range(*ends)) for ends in pairwise(accumulate(map(len, batches), initial=0))]

    def compute(module: Any, micro: Sequence[Sequence[int]]) -> Sequence[Floats]:
        return list(module.net.scores_without_cache(micro).double().cpu().numpy())

    values = member.forward.rows([ids[i] for i in rows], lambda _: cuts, compute)
    scores_NK = np.zeros((len(ids), member.net.head.out_features))
    for part in strategy.gather_objects(dict(zip(rows, values, strict=True))):
        for row, value in part.items():
            scores_NK[row] = value
    return scores_NK


def write_members(
    members: Sequence[Member], tokenizer: Any, view: View, meta: Mapping[str, Any], folder: Path, strategy: Strategy
) -> None:
    """Let rank 0 write the ensemble's folder, which appears as a whole; all ranks call it."""
    if strategy.rank == 0:
        folder.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(folder) if strategy.rank == 0 else contextlib.nullcontext() as unfinished:
        for name, member in zip(meta["members"], members):
            write = partial(_write, member.net, tokenizer, unfinished and unfinished / name, view)
            if meta["sharing"] != "none":
                write = partial(_write, member.net, tokenizer, unfinished, None)
            gather_weights(strategy, member.net, write)
        if unfinished is not None:
            write_json(unfinished / "ensemble.json", meta)


def _write(net: RewardNet, tokenizer: Any, folder: Path | None, view: View | None, weights: Mapping[str, Any]) -> None:
    """A classifier with its view, or the trunk and heads that members share."""
    assert folder is not None, "rank 0 writes"
    if view is None:
        save_shared(net, tokenizer, folder, weights)
    else:
        save_classifier(net, tokenizer, folder, weights, view)
