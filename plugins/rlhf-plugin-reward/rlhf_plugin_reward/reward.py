"""Rewards: one model, or an ensemble with uncertainty."""

from __future__ import annotations

import copy
import gc
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rlhf_core.config import BuildContext
from rlhf_core.data import DatasetError
from rlhf_core.distributed import ShardedForward, Strategy
from rlhf_core.models import ModelError, has_meta_weights, last_token_hidden
from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_core.training import NoGradForward
from rlhf_plugin_reward.classifier_files import load_classifier
from rlhf_plugin_reward.config import BradleyTerryConfig, EnsembleConfig
from rlhf_plugin_reward.encoding import Encoder, View, read_view
from rlhf_plugin_reward.net import MOST_CACHED, RewardNet

Floats = npt.NDArray[np.float64]


def aggregate(scores_NK: Floats, how: str, penalty: float) -> Floats:
    """Combine members: ``mean``, ``min``, ``median`` or ``mean_minus_std`` = mean - penalty * std (population)."""
    if how == "min":
        return scores_NK.min(1)
    if how == "median":
        return np.median(scores_NK, 1)
    mean_N = scores_NK.mean(1)
    return mean_N - penalty * scores_NK.std(1) if how == "mean_minus_std" else mean_N


def standardise(raw_NK: Floats, mean_K: Floats, std_K: Floats) -> Floats:
    """Put members on one scale, so that a spread means something."""
    return (raw_NK - mean_K) / np.maximum(std_K, 1e-8)


def calibration_error(margins_N: Floats, bins: int = 10) -> float:
    """Expected calibration error of ``sigmoid(margin)``, each pair read as the model prefers (Guo et al. 2017)."""
    confidence = 1 / (1 + np.exp(-np.abs(margins_N)))
    right = margins_N > 0
    bin_N = np.minimum(((confidence - 0.5) * 2 * bins).astype(int), bins - 1)
    error = 0.0
    for b in range(bins):
        inside_N = bin_N == b
        if inside_N.any():
            error += abs(confidence[inside_N].mean() - right[inside_N].mean()) * inside_N.mean()
    return float(error)


def quality(
    chosen_NK: Floats, rejected_NK: Floats, how: str, penalty: float, mean_K: Floats, std_K: Floats
) -> dict[str, Any]:
    """Held-out pairwise accuracy and calibration of each member and of the ensemble (raw scores; mean margin)."""
    margins_NK = chosen_NK - rejected_NK
    members = [
        {"accuracy": float((margins_NK[:, k] > 0).mean()), "calibration_error": calibration_error(margins_NK[:, k])}
        for k in range(margins_NK.shape[1])
    ]
    combined = [aggregate(standardise(s, mean_K, std_K), how, penalty) for s in (chosen_NK, rejected_NK)]
    return {
        "pairs": len(margins_NK),
        "members": members,
        "ensemble": {
            "accuracy": float((combined[0] > combined[1]).mean()),
            "calibration_error": calibration_error(margins_NK.mean(1)),
        },
    }


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
    """Have a frozen trunk see conversations once, before its head learns; the ranks share the work, in batches that
    depend on ``ids`` alone."""
    rows = sorted({tuple(row) for row in ids})
    if not rows:
        return
    if isinstance(strategy, ShardedForward) and len(rows) > MOST_CACHED:
        raise DatasetError(
            f"a frozen trunk keeps features of {MOST_CACHED} conversations, and there are {len(rows)}",
            why="for more, each rank would have to run the sharded trunk alone, which is not possible",
            fix="--set strategy=ddp, --set trainer.train_trunk=lora, or fewer examples (dataset.limit)",
        )
    rows = rows[:MOST_CACHED]
    batches = [[rows[i] for i in batch] for batch in by_beginning(rows, ROW_TOKENS)]
    of_rank = [batches[rank :: strategy.world_size] for rank in range(strategy.world_size)]
    if has_meta_weights(net):
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
    """Features ``[H]`` of this rank's conversations, from a copy of a trunk whose weights the ranks divide."""
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
    """A trunk that is called inside of a forward of all ranks."""

    def __init__(self, trunk: torch.nn.Module) -> None:
        super().__init__()
        self.trunk = trunk

    def forward(self, items: Sequence[Any], compute: Callable[[Any, Sequence[Any]], Any]) -> Any:
        return compute(self, items)


@torch.inference_mode()
def score_ids(net: RewardNet, ids: Ids, batch_tokens: int) -> npt.NDArray[np.float64]:
    """Raw scores ``[N, K]`` in the order of ``ids``; ``batch_tokens`` as of :func:`score_batches`."""
    out = np.zeros((len(ids), net.head.out_features))
    for rows in score_batches(net, ids, batch_tokens):
        out[rows] = net([ids[i] for i in rows]).double().cpu().numpy()
    return out


def score_batches(net: RewardNet, ids: Ids, batch_tokens: int) -> list[list[int]]:
    """Conversations of each forward, by place; ``batch_tokens`` bounds its padded (or unmerged) tokens."""
    device = net.head.weight.device
    if net.without_padding and net.can_pack():
        return list(by_beginning(ids, on_device(batch_tokens, ROW_TOKENS, device)))
    return list(by_length(ids, on_device(batch_tokens, PADDED_TOKENS, device)))


class SingleReward:
    """The raw score of one reward model."""

    def __init__(self, net: RewardNet, encoder: Encoder, batch_tokens: int) -> None:
        self.net, self.encoder, self.batch_tokens = net, encoder, batch_tokens

    @classmethod
    def from_config(cls, config: BradleyTerryConfig, ctx: BuildContext) -> SingleReward:
        reward = cls.load(config, str(ctx.device))
        reward.encoder.check_episodes(str(config.path), getattr(ctx.config, "environment", None))
        return reward

    @classmethod
    def load(cls, config: BradleyTerryConfig, device: str) -> SingleReward:
        net, tokenizer = load_classifier(config.path, config.chat_template)
        view = read_view(config.path).or_else(config.turns, config.truncation, config.max_length)
        if not view.own and not tokenizer.chat_template:
            raise ModelError(
                f"reward model '{config.path}' is from elsewhere, and its tokenizer has no chat template",
                why="nothing says how the conversations were written that it was trained on; another text gets other "
                "scores",
                fix="say how: reward.chat_template=FILE (Jinja), plain or chatml",
            )
        return cls(net.to(device), encoder_of(net, tokenizer, view), config.batch_tokens)

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score per sample; a non-finite one is an error, not a number."""
        ids = [self.encoder.encode_sample(s) for s in samples]
        return [as_score(float(v)) for v in score_ids(self.net, ids, self.batch_tokens)[:, 0]]


def encoder_of(net: RewardNet, tokenizer: Any, view: View) -> Encoder:
    """An encoder that keeps to the model's own context as well."""
    return Encoder(tokenizer, view.limit(net.context), view)


def as_score(value: float, parts: dict[str, float] | None = None) -> Score:
    """A finite value as a score, anything else as status ``error``."""
    if not np.isfinite(value):
        return Score.failed(ScoreStatus.ERROR, f"the reward model returned {value}")
    return Score(value, parts or {})


class EnsembleReward:
    """K members on one scale; their disagreement costs."""

    def __init__(
        self, nets: Sequence[RewardNet], encoder: Encoder, config: EnsembleConfig, meta: dict[str, Any]
    ) -> None:
        self.nets, self.encoder, self.config, self.meta = list(nets), encoder, config, meta
        self.mean_K, self.std_K = np.array(meta["mean"]), np.array(meta["std"])
        quantile = config.gate_quantile
        self.gate = None if quantile is None else float(np.quantile(meta["gate_stds"], quantile))

    def members(self, samples: Sequence[Sample]) -> Floats:
        """Standardised member scores ``[N, K]``."""
        ids = [self.encoder.encode_sample(s) for s in samples]
        raw = np.concatenate([score_ids(n, ids, self.config.batch_tokens) for n in self.nets], 1)
        return standardise(raw, self.mean_K, self.std_K)

    def quality(self) -> dict[str, Any]:
        """Held-out accuracy and calibration of the members, and of what this configuration makes of them."""
        chosen, rejected = (np.array(self.meta["heldout"][side]) for side in ("chosen", "rejected"))
        config = self.config
        return quality(chosen, rejected, config.aggregate, config.uncertainty_penalty, self.mean_K, self.std_K)

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """The aggregate of each sample, members and their std in ``parts``."""
        if not samples:
            return []
        members_NK = self.members(samples)
        values = aggregate(members_NK, self.config.aggregate, self.config.uncertainty_penalty)
        return [self._one(float(v), row) for v, row in zip(values, members_NK)]

    def _one(self, value: float, row_K: Floats) -> Score:
        parts = {
            **{f"member_{k}": float(v) for k, v in enumerate(row_K)},
            "mean": float(row_K.mean()),
            "std": float(row_K.std()),
        }
        if self.gate is not None and parts["std"] > self.gate:
            return Score(None, parts, ScoreStatus.GATED, f"members disagree: std {parts['std']:.3f} > {self.gate:.3f}")
        return as_score(value, parts)


def load_ensemble(config: EnsembleConfig, folder: Path, device: str) -> EnsembleReward:
    """Load a folder that :mod:`rlhf_plugin_reward.ensemble` wrote."""
    from rlhf_plugin_reward.store import load_shared

    meta = json.loads((folder / "ensemble.json").read_text())
    if "heldout" not in meta:
        raise ModelError(f"ensemble '{folder}' lacks its held-out scores", fix="train it again with this version")
    view = View(**meta.get("view", {})).or_else(config.turns, config.truncation, config.max_length)
    if meta["sharing"] != "none":
        net, tokenizer = load_shared(folder, meta)
        return EnsembleReward([net.to(device)], encoder_of(net, tokenizer, view), config, meta)
    nets: list[RewardNet] = []
    tokenizers: list[Any] = []
    for name in meta["members"]:
        if not (folder / name).is_dir():
            raise ModelError(
                f"ensemble '{folder}' lacks its member '{name}'", fix="copy the whole folder, or train it again"
            )
        net, tokenizer = load_classifier(str(folder / name))
        nets.append(net.to(device))
        tokenizers.append(tokenizer)
        if tokenizer.get_vocab() != tokenizers[0].get_vocab():
            raise ModelError(
                f"member '{name}' of ensemble '{folder}' has another tokenizer than the first",
                why="members see the same token ids, so they need one vocabulary",
                fix="train the members from one model",
            )
    return EnsembleReward(nets, encoder_of(nets[0], tokenizers[0], view), config, meta)
