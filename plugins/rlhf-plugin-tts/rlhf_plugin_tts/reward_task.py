"""Pairs of clips through the core's offline loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from rlhf_core.config import BuildContext
from rlhf_core.losses import PairBatch
from rlhf_core.models import check_finite
from rlhf_core.training import OfflineTrainer
from rlhf_plugin_tts.reward_trainer import AudioRewardModelConfig
from rlhf_plugin_tts.rows import AudioPair, digest
from rlhf_plugin_tts.trained import FeatureEncoder, Head, PretrainedEncoder
from rlhf_plugin_tts.training import EncodedClips, HeadSettings, save, standardised

TRAINED = "trained.safetensors"


@dataclass(frozen=True, slots=True, eq=False)
class EncodedPair:
    name: str
    vectors_2F: torch.Tensor
    tokens: int = 2
    """Clips."""


class PairOfClips(torch.nn.Module):
    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head = head

    def forward(self, items: Sequence[EncodedPair]) -> PairBatch:
        vectors_B2F = torch.stack([item.vectors_2F for item in items]).to(next(self.parameters()).device)
        return PairBatch(self.head(vectors_B2F[:, 0]), self.head(vectors_B2F[:, 1]))


class AudioRewardTask:
    """A head and the pairs that it learns from; every clip is encoded once, before training."""

    def __init__(self, config: AudioRewardModelConfig, ctx: BuildContext) -> None:
        self.config, self.ctx = config, ctx
        self.clips = EncodedClips(FeatureEncoder() if config.encoder is None else PretrainedEncoder(config.encoder))
        train, heldout = config.splits(ctx)
        self.pairs = {"train": self._encode(train), "heldout": self._encode(heldout)}
        ctx.session.counts["clips_unusable"] += len(self.clips.unusable)
        flat = torch.stack([pair.vectors_2F for pair in self.pairs["train"]]).flatten(0, 1)
        self.head = standardised(flat, config.hidden)
        self.model = self.head.to(ctx.strategy.device)
        self.module = PairOfClips(self.head)
        if config.random_labels:
            turned = np.random.default_rng(ctx.seed).random(len(self.pairs["train"])) < 0.5
            self.pairs["train"] = [
                EncodedPair(p.name, p.vectors_2F.flip(0)) if turn else p
                for p, turn in zip(self.pairs["train"], turned, strict=True)
            ]

    def _encode(self, pairs: Sequence[AudioPair]) -> list[EncodedPair]:
        vectors, good = self.clips.pairs(pairs)
        names = [f"{digest(p.chosen)[:12]}-{digest(p.rejected)[:12]}" for p in good]
        return [EncodedPair(name, row) for name, row in zip(names, vectors, strict=True)]

    def items(self, split: str) -> Sequence[EncodedPair]:
        """Pairs of which both clips could be read."""
        return self.pairs[split]

    def _state(self, weights: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        state = {**self.head.state_dict(), **{k: v for k, v in weights.items() if k in self.head.state_dict()}}
        return {name: value.detach().cpu().contiguous() for name, value in state.items()}

    def write_model(self, folder: Path, weights: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        check_finite(self._state(weights), str(folder))
        save_file(self._state(weights), str(folder / TRAINED))

    def load_model(self, folder: Path) -> None:
        self.head.load_state_dict(load_file(str(folder / TRAINED)))

    def write_final(self, folder: Path, weights: Mapping[str, Any]) -> None:
        config, head = self.config, Head(len(self.head.get_buffer("mean")), self.config.hidden)
        head.load_state_dict(self._state(weights))
        source = "features" if config.encoder is None else "encoder"
        settings = HeadSettings(
            config.hidden, 0.0, round(config.epochs), config.batch_size, config.optimizer.learning_rate,
            config.optimizer.weight_decay, self.ctx.seed, config.random_labels,
        )  # fmt: skip
        save(head, folder, source, config.encoder or "", settings, {})


def build_trainer(config: AudioRewardModelConfig, ctx: BuildContext) -> OfflineTrainer:
    return OfflineTrainer(config, ctx, AudioRewardTask(config, ctx))
