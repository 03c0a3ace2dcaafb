"""Reward models that were trained on audio pairs: a small head on acoustic features, or on a frozen encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from rlhf_core.models import ModelError, check_finite
from rlhf_core.rewards import Sample
from rlhf_plugin_tts.audio import Clip, ClipError
from rlhf_plugin_tts.clip_reward import ClipReward
from rlhf_plugin_tts.config import AudioEncoderConfig, AudioModelConfig
from rlhf_plugin_tts.features import FEATURES, measure
from rlhf_plugin_tts.store import WEIGHTS, check_folder
from rlhf_plugin_tts.utmos import load_encoder

RATE = 16000
BLOCK = 20 * RATE
"""Longer clips go through the encoder in blocks of 20 s."""


class FeatureEncoder:
    def __init__(self, names: tuple[str, ...] = tuple(FEATURES)) -> None:
        if unknown := sorted(set(names) - set(FEATURES)):
            raise ModelError(f"there is no acoustic feature '{unknown[0]}'", fix="one of " + ", ".join(FEATURES))
        self.names = names

    def encode(self, clip: Clip) -> Tensor:
        features = measure(clip)
        if bad := next((name for name in self.names if not np.isfinite(features[name])), None):
            raise ClipError(f"'{bad}' of the clip is not defined: it has no voice")
        return torch.tensor([features[name] for name in self.names])


class PretrainedEncoder:
    """The mean over frames of a frozen self-supervised encoder's last layer."""

    def __init__(self, path: str) -> None:
        self.encoder = load_encoder(path)

    @torch.inference_mode()
    def encode(self, clip: Clip) -> Tensor:
        samples = clip.at(RATE).samples
        scaled = torch.from_numpy((samples - samples.mean()) / (samples.std() + 1e-7))
        blocks = [b for b in scaled.split(BLOCK) if len(b) >= RATE // 10] or [scaled]
        frames = torch.cat([self.encoder(b[None]).last_hidden_state[0] for b in blocks])
        if not len(frames):
            raise ClipError("the clip is shorter than one frame of the encoder")
        return frames.mean(dim=0)


ClipEncoder = FeatureEncoder | PretrainedEncoder
"""Turns a clip into the vector that the head scores."""


class Head(nn.Module):
    """Standardises a vector and gives it one score: a layer of ReLU where ``hidden`` is above 0, else linear."""

    def __init__(self, width: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("std", torch.ones(width))
        layers = (nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 1))
        self.layers = nn.Sequential(*layers) if hidden else nn.Linear(width, 1)

    def forward(self, vectors_BF: Tensor) -> Tensor:
        """Scores ``[B]``."""
        mean: Any = self.mean
        std: Any = self.std
        return self.layers(((vectors_BF - mean) / std).clamp(-5, 5))[:, 0]


class TrainedReward(ClipReward):
    """A clip's score by one trained head, or by several that disagree."""

    def __init__(self, members: Sequence[tuple[ClipEncoder, Head]], max_seconds: float, penalty: float = 0.0) -> None:
        super().__init__(max_seconds)
        self.members = [(encoder, head.eval().requires_grad_(False)) for encoder, head in members]
        self.penalty = penalty

    @torch.inference_mode()
    def measure(self, clip: Clip, sample: Sample) -> tuple[float, Mapping[str, float]]:
        """The score: differences are log odds of preference; parts are each member's score and their deviation."""
        vectors = {id(encoder): encoder.encode(clip)[None] for encoder, _ in self.members}
        scores = [float(head(vectors[id(encoder)])) for encoder, head in self.members]
        if len(scores) == 1:
            return scores[0], {}
        mean, std = float(np.mean(scores)), float(np.std(scores))
        return mean - self.penalty * std, {"std": std, **{f"member_{i}": v for i, v in enumerate(scores)}}


def load_feature_model(config: AudioModelConfig) -> TrainedReward:
    return _loaded(config, lambda meta: tuple(meta["features"]), FeatureEncoder)


def load_encoder_model(config: AudioEncoderConfig) -> TrainedReward:
    return _loaded(config, lambda meta: str(meta["encoder"]), PretrainedEncoder)


def _loaded(
    config: AudioModelConfig, source_of: Callable[[Any], Any], encoder: Callable[[Any], ClipEncoder]
) -> TrainedReward:
    """Members with the same features, or the same pretrained model, share an encoder."""
    encoders: dict[Any, ClipEncoder] = {}
    members: list[tuple[ClipEncoder, Head]] = []
    for path in (config.path, *config.also):
        meta = check_folder(path, config.name)
        source = source_of(meta)
        encoders[source] = encoders.get(source) or encoder(source)
        members.append((encoders[source], load_head(path, meta)))
    return TrainedReward(members, config.max_seconds, config.uncertainty_penalty)


def load_head(path: str, meta: Mapping[str, Any]) -> Head:
    head = Head(int(meta["width"]), int(meta["hidden"]))
    try:
        head.load_state_dict(load_file(str(Path(path).expanduser() / WEIGHTS)))
    except RuntimeError as error:
        raise ModelError(f"the weights of '{path}' do not fit its description", why=str(error)[:300]) from error
    check_finite(head.state_dict(), path)
    return head
