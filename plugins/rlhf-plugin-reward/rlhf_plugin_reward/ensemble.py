"""Trains an ensemble on preference pairs, measures it, and keeps it in a cache."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlhf_core.config import BuildContext, RlhfError
from rlhf_core.data import DatasetError, Datasets, PreferencePair
from rlhf_core.distributed import LocalStrategy, Strategy
from rlhf_core.models import LoadedModel, ModelConfig, ModelError, load_policy, preserved_rng
from rlhf_plugin_reward.config import EnsembleConfig, needs_pairs, without_pairs
from rlhf_plugin_reward.encoding import EARLIER_LENGTH, Encoder, View
from rlhf_plugin_reward.members import (
    Advance,
    Member,
    fit_member,
    ignore,
    member_scores,
    updates_of,
    write_members,
)
from rlhf_plugin_reward.net import fresh_net
from rlhf_plugin_reward.pairs import PairItem, bootstrap, encode_pairs, first_of_mixture
from rlhf_plugin_reward.reward import EnsembleReward, Floats, load_ensemble, standardise
from rlhf_plugin_reward.store import cache_root, digest

Say = Callable[[str], None]
Work = Callable[[str, int | None], AbstractContextManager[Advance]]
"""Shows how far work is: ``session.work``."""


def load_or_train(config: EnsembleConfig, ctx: BuildContext) -> EnsembleReward:
    """The ensemble at ``config.path``, the cached one, or a new one, with the same random numbers of the run; its
    quality goes into the run's report."""
    with preserved_rng():
        folder = Path(config.path).expanduser() if config.path else _cached(config, ctx)
        reward = load_ensemble(config, folder, str(ctx.device))
        reward.encoder.check_episodes(str(folder), getattr(ctx.config, "environment", None))
    quality = reward.quality()
    ctx.report["ensemble"] = {
        "members": len(reward.mean_K),
        "sharing": reward.meta["sharing"],
        "digest": folder.name,
        "train_pairs": reward.meta.get("train_pairs"),
        "pairs_cut": reward.meta.get("pairs_cut"),
        "heldout": quality,
    }
    _say(ctx)(describe(quality))
    return reward


def _say(ctx: BuildContext) -> Say:
    return ctx.session.say if ctx.session is not None and ctx.rank == 0 else lambda text: None


def _cached(config: EnsembleConfig, ctx: BuildContext) -> Path:
    """Folder of the ensemble for these settings; all ranks train it together if there is none."""
    base = config.base_of(ctx.config.model)
    train, heldout = training_pairs(config, ctx)
    folder = cache_root() / digest(config, base, train, heldout, ctx.seed)
    say = _say(ctx)
    strategy: Strategy | None = ctx.strategy
    if strategy is None or strategy.world_size == 1:
        strategy = LocalStrategy(str(ctx.device))
    if strategy.gather_objects(trained(folder))[0]:
        wait_for(folder, config.stall_timeout_s)
        say(f"reward ensemble: using the one trained before, {folder}")
    else:
        say(
            f"reward ensemble: none trained yet for this setting; training {config.members} members "
            f"on {len(train)} pairs"
        )
        check_writable(folder)
        work = getattr(ctx.session, "work", None)
        train_ensemble(config, base, train, heldout, ctx.seed, folder, say, strategy, work)
        strategy.barrier("rank 0 writing the reward ensemble")
        wait_for(folder, config.stall_timeout_s)
    return folder


def training_pairs(config: EnsembleConfig, ctx: BuildContext) -> tuple[list[PreferencePair], list[PreferencePair]]:
    """Pairs to train on and held-out ones; those beyond the limits are counted in the run's report."""
    datasets = Datasets(config.pairs, ctx) if config.pairs is not None else ctx.datasets
    try:
        all_train, all_heldout = datasets.pairs("train"), datasets.pairs("heldout")
    except DatasetError as error:
        if config.pairs is None and without_pairs(error):
            raise needs_pairs(error) from error
        raise
    train = first_of_mixture(all_train, datasets.weights, config.max_pairs)
    heldout = first_of_mixture(all_heldout, datasets.weights, config.heldout_pairs)
    counts = Counter(datasets.counts if config.pairs is not None else {})
    counts["pairs_beyond_max_pairs"] = len(all_train) - len(train)
    counts["pairs_beyond_heldout_pairs"] = len(all_heldout) - len(heldout)
    ctx.report["ensemble_pairs_counted"] = {reason: n for reason, n in counts.items() if n}
    if len(train) < 2 or len(heldout) < 2:
        raise DatasetError(
            f"an ensemble needs preference pairs, found {len(train)} to train on and {len(heldout)} held out",
            fix="set reward.pairs to a dataset with chosen and rejected columns, or reward.path to a trained ensemble",
        )
    return train, heldout


def train_ensemble(
    config: EnsembleConfig,
    base: ModelConfig,
    train: Sequence[PreferencePair],
    heldout: Sequence[PreferencePair],
    seed: int,
    folder: Path,
    say: Say,
    strategy: Strategy,
    work: Work | None = None,
) -> None:
    """Train the members as one process would, measure on held-out pairs, and write ``folder`` as a whole, unless
    another run was first; all ranks call it. ``work`` shows the updates."""
    began = time.perf_counter()
    if strategy.world_size > 1:  # adapters that come with the model are drawn from these
        torch.set_rng_state(strategy.gather_objects(torch.get_rng_state())[0])
    policy = load_policy(base, weights=not hasattr(strategy, "weights_device"))  # such a strategy loads them itself
    view = View(max_length=EARLIER_LENGTH).or_else(config.turns, config.truncation, config.max_length)
    encoder = Encoder(policy.tokenizer, view.limit(policy.context), view)
    cut: Counter[str] = Counter()
    train_items = bootstrap(encode_pairs(train, encoder, cut), config.members, seed)
    heldout_items = encode_pairs(heldout, encoder, cut)
    shown = nullcontext(ignore) if work is None else work("training the reward ensemble", _updates(config, train_items))
    with shown as advance:
        members = _train_members(config, policy, train_items, seed, strategy, advance)
    sides = [i.chosen_ids for i in heldout_items], [i.rejected_ids for i in heldout_items]
    chosen_NK, rejected_NK = (member_scores(members, ids, config.batch_tokens, strategy) for ids in sides)
    meta = {
        "sharing": config.sharing,
        "view": asdict(view),
        "train_pairs": len(train),
        "pairs_cut": dict(cut),
        "members": [f"member_{k}" for k in range(config.members)],
        **_scale(chosen_NK, rejected_NK),
        "heldout": {"chosen": chosen_NK.tolist(), "rejected": rejected_NK.tolist()},
    }
    if strategy.gather_objects(trained(folder))[0]:
        say(f"reward ensemble: another run has trained the same one meanwhile, {folder}")
    else:
        write_members(members, policy.tokenizer, view, meta, folder, strategy)
        say(f"reward ensemble: trained in {time.perf_counter() - began:.0f} s, kept in {folder}")
    for member in members:
        member.forward.release()


def _train_members(
    config: EnsembleConfig,
    policy: LoadedModel,
    items: Sequence[PairItem],
    seed: int,
    strategy: Strategy,
    advance: Advance,
) -> list[Member]:
    """One net with K heads where members share a trunk, each with its own bootstrap sample; else K nets."""
    if config.sharing != "none":
        net = fresh_net(policy, config.members, seed, config.sharing)
        return [fit_member(config, net, items, seed, strategy, policy.source, advance)]
    members: list[Member] = []
    for k in range(config.members):
        member_seed = seed * 1000 + k
        net = fresh_net(policy, 1, member_seed, "none")
        members.append(fit_member(config, net, _sampled(items, k), member_seed, strategy, policy.source, advance))
    return members


def _sampled(items: Sequence[PairItem], k: int) -> list[PairItem]:
    return [
        PairItem(i.name, i.chosen_ids, i.rejected_ids, i.margin, (i.counts_K[k],)) for i in items if i.counts_K[k] > 0
    ]


def _updates(config: EnsembleConfig, items: Sequence[PairItem]) -> int:
    if config.sharing != "none":
        return updates_of(config, len(items))
    return sum(updates_of(config, len(_sampled(items, k))) for k in range(config.members))


def _scale(chosen_NK: Floats, rejected_NK: Floats) -> dict[str, list[float]]:
    """Mean and spread of each member's held-out scores, and how far the members disagree on each response."""
    scores_NK = np.concatenate([chosen_NK, rejected_NK])
    mean_K, std_K = scores_NK.mean(0), scores_NK.std(0)
    return {
        "mean": mean_K.tolist(),
        "std": std_K.tolist(),
        "gate_stds": standardise(scores_NK, mean_K, std_K).std(1).tolist(),
    }


def describe(quality: dict[str, Any]) -> str:
    rows = [f"{m['accuracy']:.1%}" for m in quality["members"]]
    ensemble = quality["ensemble"]
    return (
        f"reward ensemble: held-out accuracy on {quality['pairs']} pairs: members {', '.join(rows)}; ensemble "
        f"{ensemble['accuracy']:.1%} (calibration error {ensemble['calibration_error']:.3f})"
    )


POLL_S = 0.1


def trained(folder: Path) -> bool:
    """True if the ensemble is there; it appears as a whole."""
    return (folder / "ensemble.json").is_file()


def check_writable(folder: Path) -> None:
    """Refuse a cache that cannot be written, before anything is trained."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder.parent):
            pass
    except OSError as error:
        raise ModelError(
            f"no place for the trained ensemble: {error.strerror}",
            where=str(folder.parent),
            fix="set RLHF_CACHE to a folder that can be written",
        ) from error


def wait_for(folder: Path, limit_s: float) -> None:
    """Wait until this process sees an ensemble that rank 0 has written, or found."""
    since = time.monotonic()
    while not trained(folder):
        if time.monotonic() - since > limit_s:
            raise RlhfError(
                f"the ensemble that rank 0 saved did not appear in this process's cache within {limit_s:.0f} s",
                where=str(folder),
                why="the cache is not one folder for all processes, or its file system shows what is new late",
                fix="set RLHF_CACHE to a folder that all machines share; raise reward.stall_timeout_s",
            )
        time.sleep(POLL_S)
