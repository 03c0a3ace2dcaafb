"""Rewards: one model, or an ensemble with uncertainty."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.config import BuildContext
from rlhf_core.models import ModelConfig, ModelError, context_length
from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_plugin_reward.aggregate import Floats, aggregate, quality, standardise
from rlhf_plugin_reward.config import BradleyTerryConfig, EnsembleConfig, device_of
from rlhf_plugin_reward.encoding import Encoder, View, read_view
from rlhf_plugin_reward.net import RewardNet, load_classifier
from rlhf_plugin_reward.scoring import score_ids


class SingleReward:
    """The raw score of one reward model."""

    def __init__(self, net: RewardNet, encoder: Encoder, batch_tokens: int) -> None:
        self.net, self.encoder, self.batch_tokens = net, encoder, batch_tokens

    @classmethod
    def from_config(cls, config: BradleyTerryConfig, ctx: BuildContext) -> SingleReward:
        """Load the classifier to where the policy is."""
        reward = cls.load(config, device_of(ctx))
        reward.encoder.check_episodes(str(config.path), getattr(ctx.config, "environment", None))
        return reward

    @classmethod
    def load(cls, config: BradleyTerryConfig, device: str) -> SingleReward:
        """Load a classifier folder."""
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
    return Encoder(tokenizer, view.limit(context_length(net.trunk, ModelConfig())), view)


def as_score(value: float, parts: dict[str, float] | None = None) -> Score:
    """A finite value as a score, anything else as status ``error``."""
    if not np.isfinite(value):
        return Score.failed(ScoreStatus.ERROR, f"the reward model returned {value}")
    return Score(value, parts or {})


class EnsembleReward:
    """K members on one scale; their disagreement costs.

    Args:
        nets: one net with K heads, or K nets with one.
        encoder: conversation to token ids.
        config: how to combine them.
        meta: ``mean``, ``std`` per member, ``gate_stds``, and ``heldout``: raw scores of the held-out pairs' sides.
    """

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
    """Load a folder that :mod:`rlhf_plugin_reward.train` wrote."""
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
