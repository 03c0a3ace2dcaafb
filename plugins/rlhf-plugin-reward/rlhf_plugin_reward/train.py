"""Trains an ensemble on preference pairs, measures it, and keeps it in a cache."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.api import BuildContext, DatasetError, ModelConfig, PreferencePair
from rlhf_core.sdk import (
    Datasets,
    Learner,
    LoadedModel,
    LocalStrategy,
    load_policy,
    preserved_rng,
    whole_folder,
    write_json,
)
from rlhf_plugin_reward.aggregate import Floats, standardise
from rlhf_plugin_reward.config import EnsembleConfig, RewardModelConfig, device_of, needs_pairs, without_pairs
from rlhf_plugin_reward.encoding import EARLIER_LENGTH, Encoder, View
from rlhf_plugin_reward.loss import BradleyTerry
from rlhf_plugin_reward.net import RewardNet, fresh_net, save_classifier
from rlhf_plugin_reward.pairs import PairItem, PairModule, bootstrap, encode_pairs, first_of_mixture
from rlhf_plugin_reward.reward import EnsembleReward, load_ensemble
from rlhf_plugin_reward.scoring import keep_features, score_ids
from rlhf_plugin_reward.store import cache_root, digest, save_shared
from rlhf_plugin_reward.waiting import beating, trained, wait_for

Say = Callable[[str], None]
Beat = Callable[[], None]
Advance = Callable[[int], None]
Work = Callable[[str, int | None], AbstractContextManager[Advance]]
"""Shows how far work is: ``session.work``."""


def ignore(count: int) -> None:
    """Nobody watches."""


def load_or_train(config: EnsembleConfig, ctx: BuildContext) -> EnsembleReward:
    """The ensemble at ``config.path``, the cached one, or a new one; its quality goes into the run's report.

    The run's random numbers are the same whether it was trained here, by another process, or before.
    """
    with preserved_rng():
        folder = Path(config.path).expanduser() if config.path else _cached(config, ctx)
        reward = load_ensemble(config, folder, device_of(ctx))
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
    """Folder of the ensemble for these settings; one process trains it if there is none, the others wait."""
    base = config.base_model or ctx.config.model.model_copy(update={"lora": None})
    train, heldout = training_pairs(config, ctx)
    folder = cache_root() / digest(config, base, train, heldout, ctx.seed)
    say = _say(ctx)
    if trained(folder):
        say(f"reward ensemble: using the one trained before, {folder}")
    elif ctx.rank == 0:
        say(
            f"reward ensemble: none trained yet for this setting; training {config.members} members "
            f"on {len(train)} pairs"
        )
        with beating(folder) as beat:
            work = getattr(ctx.session, "work", None)
            train_ensemble(config, base, train, heldout, ctx.seed, folder, say, device_of(ctx), beat, work)
    else:
        wait_for(folder, config.stall_timeout_s)
    if ctx.strategy is not None:
        ctx.strategy.barrier("every process finding the reward ensemble")
    return folder


def training_pairs(config: EnsembleConfig, ctx: BuildContext) -> tuple[list[PreferencePair], list[PreferencePair]]:
    """Pairs to train on and held-out ones; those beyond the limits are counted in the run's report.

    Raises:
        DatasetError: fewer than two of either.
    """
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
    device: str,
    beat: Beat = lambda: None,
    work: Work | None = None,
) -> None:
    """Train, measure on held-out pairs, and write ``folder`` as a whole; ``beat`` is called after every bit of it.

    ``work`` shows how many updates are done.

    Another run may train the same one meanwhile: whoever is done first writes it.
    """
    began = time.perf_counter()
    policy = load_policy(base)
    view = View(max_length=EARLIER_LENGTH).or_else(config.turns, config.truncation, config.max_length)
    encoder = Encoder(policy.tokenizer, view.limit(policy.context), view)
    cut: Counter[str] = Counter()
    train_items = bootstrap(encode_pairs(train, encoder, cut), config.members, seed)
    heldout_items = encode_pairs(heldout, encoder, cut)
    shown = nullcontext(ignore) if work is None else work("training the reward ensemble", _updates(config, train_items))
    with shown as advance:
        nets = _train_members(config, policy, train_items, seed, device, beat, advance)
    chosen_NK = _scores(nets, [i.chosen_ids for i in heldout_items], config.batch_tokens, beat)
    rejected_NK = _scores(nets, [i.rejected_ids for i in heldout_items], config.batch_tokens, beat)
    meta = {
        "sharing": config.sharing,
        "view": asdict(view),
        "train_pairs": len(train),
        "pairs_cut": dict(cut),
        "members": [f"member_{k}" for k in range(config.members)],
        **_scale(chosen_NK, rejected_NK),
        "heldout": {"chosen": chosen_NK.tolist(), "rejected": rejected_NK.tolist()},
    }
    if trained(folder):
        say(f"reward ensemble: another run has trained the same one meanwhile, {folder}")
        return
    _write(nets, policy.tokenizer, view, meta, folder, beat)
    say(f"reward ensemble: trained in {time.perf_counter() - began:.0f} s, kept in {folder}")


def _train_members(
    config: EnsembleConfig,
    policy: LoadedModel,
    items: Sequence[PairItem],
    seed: int,
    device: str,
    beat: Beat,
    advance: Advance,
) -> list[RewardNet]:
    """One net with K heads where members share a trunk, each with its own bootstrap sample; else K nets."""
    if config.sharing != "none":
        net = fresh_net(policy, config.members, seed, config.sharing)
        return [fit(config, net, items, seed, device, beat, advance)]
    nets: list[RewardNet] = []
    for k in range(config.members):
        member_seed = seed * 1000 + k
        net = fresh_net(policy, 1, member_seed, "none")
        nets.append(fit(config, net, _sampled(items, k), member_seed, device, beat, advance))
    return nets


def _sampled(items: Sequence[PairItem], k: int) -> list[PairItem]:
    """A member's own bootstrap sample."""
    return [
        PairItem(i.name, i.chosen_ids, i.rejected_ids, i.margin, (i.counts_K[k],)) for i in items if i.counts_K[k] > 0
    ]


def _updates(config: EnsembleConfig, items: Sequence[PairItem]) -> int:
    """Updates that all members make together."""
    if config.sharing != "none":
        return _steps(config, len(items))
    return sum(_steps(config, len(_sampled(items, k))) for k in range(config.members))


def _steps(config: EnsembleConfig, pairs: int) -> int:
    return max(1, math.ceil(pairs * config.epochs / config.batch_size))


def _scores(nets: Sequence[RewardNet], ids: Sequence[Sequence[int]], batch_tokens: int, beat: Beat) -> Floats:
    """Raw scores ``[N, K]`` of all members."""
    return np.concatenate([score_ids(net, ids, batch_tokens, beat) for net in nets], 1)


def _scale(chosen_NK: Floats, rejected_NK: Floats) -> dict[str, list[float]]:
    """Mean and spread of each member's held-out scores, and how far the members disagree on each response."""
    scores_NK = np.concatenate([chosen_NK, rejected_NK])
    mean_K, std_K = scores_NK.mean(0), scores_NK.std(0)
    return {
        "mean": mean_K.tolist(),
        "std": std_K.tolist(),
        "gate_stds": standardise(scores_NK, mean_K, std_K).std(1).tolist(),
    }


def _write(
    nets: Sequence[RewardNet], tokenizer: Any, view: View, meta: Mapping[str, Any], folder: Path, beat: Beat
) -> None:
    """Write the ensemble's folder as a whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(folder) as unfinished:
        if meta["sharing"] != "none":
            save_shared(nets[0], tokenizer, unfinished)
        else:
            for name, net in zip(meta["members"], nets):
                save_classifier(net, tokenizer, unfinished / name, view=view)
                beat()
        write_json(unfinished / "ensemble.json", meta)


def fit(
    config: EnsembleConfig,
    net: RewardNet,
    items: Sequence[PairItem],
    seed: int,
    device: str,
    beat: Beat = lambda: None,
    advance: Advance = ignore,
) -> RewardNet:
    """Run the core's update over seeded permutations of the pairs; ``beat`` and ``advance`` are called after each."""
    steps = _steps(config, len(items))
    settings = RewardModelConfig(
        optimizer=config.optimizer, micro_batch_size=config.micro_batch_size, batch_size=config.batch_size
    )
    strategy = LocalStrategy(device)
    module = strategy.prepare(PairModule(net))
    learner = Learner(module, BradleyTerry.from_config(config.loss), strategy, settings, steps)
    if net.frozen:
        keep_features(net, [ids for i in items for ids in (i.chosen_ids, i.rejected_ids)], strategy, beat)
    order: list[int] = []
    for step in range(steps):
        while len(order) < config.batch_size:
            order += np.random.default_rng([seed, step]).permutation(len(items)).tolist()
        batch, order = [items[i] for i in order[: config.batch_size]], order[config.batch_size :]
        learner.update(batch)
        beat()
        advance(1)
    return net.eval()


def describe(quality: dict[str, Any]) -> str:
    """One line for people."""
    rows = [f"{m['accuracy']:.1%}" for m in quality["members"]]
    ensemble = quality["ensemble"]
    return (
        f"reward ensemble: held-out accuracy on {quality['pairs']} pairs: members {', '.join(rows)}; ensemble "
        f"{ensemble['accuracy']:.1%} (calibration error {ensemble['calibration_error']:.3f})"
    )
