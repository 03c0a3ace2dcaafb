"""DistillMOS from the weights in the package distillmos, whose code needs torchaudio and is not imported."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlhf_core.models import ModelError, check_finite
from rlhf_core.rewards import Sample
from rlhf_plugin_tts.audio import Clip
from rlhf_plugin_tts.clip_reward import ClipReward
from rlhf_plugin_tts.config import DistillMosConfig

RATE = 16000
SEGMENT, MOST_HOP = 122_880, 16_000
"""Samples that the network sees at once, and the largest distance of two such segments of a longer clip."""
WINDOW, HOP = 320, 160
CHANNELS = (2, 64, 64, 128, 256, 256, 256)
WIDTH, HEADS, LAYERS, FRAMES = 200, 8, 7, 384


class DistillMos(ClipReward):
    """Predicted mean opinion score, 1 to 5."""

    def __init__(self, config: DistillMosConfig) -> None:
        super().__init__(config.max_seconds)
        self.net = load_net()

    @torch.inference_mode()
    def measure(self, clip: Clip, sample: Sample) -> tuple[float, Mapping[str, float]]:
        return float(self.net(segments(torch.from_numpy(clip.at(RATE).samples))).mean()), {}


def segments(samples_N: Tensor) -> Tensor:
    """Segments ``[S, 122880]``, evenly over the clip; a shorter clip is padded with silence."""
    beyond = len(samples_N) - SEGMENT
    if beyond < 0:
        samples_N, beyond = functional.pad(samples_N, (0, -beyond)), 0
    count = math.ceil(beyond / MOST_HOP) + 1
    starts = [int(i / max(count - 1, 1) * beyond) for i in range(count)]
    return torch.stack([samples_N[s : s + SEGMENT] for s in starts])


class Net(nn.Module):
    """Complex spectrum, convolutions, transformer, attention pooling; the names are those of the weights' file."""

    def __init__(self) -> None:
        super().__init__()
        self.cnn = nn.Module()
        layers: list[nn.Module] = []
        bins = WINDOW // 2 + 1
        for i, (inside, outside) in enumerate(pairwise(CHANNELS)):
            stride = (2 if i else 1, 2 if i == len(CHANNELS) - 2 else 1)
            layers += [nn.Conv2d(inside, outside, (3, 3), stride, (0, 1)), nn.LeakyReLU(0.1)]
            bins = (bins - 3) // stride[0] + 1
        self.cnn.cnn = nn.Sequential(*layers)
        self.transformer_pool_attn = _Head(CHANNELS[-1] * bins)

    def forward(self, samples_SN: Tensor) -> Tensor:
        """Scores ``[S]``."""
        scaled = samples_SN / (samples_SN.abs().amax(dim=1, keepdim=True) + 1e-8)
        margin = (WINDOW - HOP) // 2
        padded = functional.pad(scaled, (margin, margin), mode="reflect")
        window = torch.hann_window(WINDOW, device=padded.device)
        spectrum = torch.stft(padded, WINDOW, HOP, window=window, center=False, return_complex=True)
        parts = torch.view_as_real(spectrum)
        size = parts.square().sum(-1, keepdim=True).sqrt().clip(1e-12)
        features: Tensor = self.cnn.cnn((size**0.3 * parts / size).permute(0, 3, 1, 2))  # pyright: ignore
        return 1 + 4 * self.transformer_pool_attn(features.flatten(1, 2).transpose(1, 2))


class _Head(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_input = nn.BatchNorm1d(width)
        self.transformer = _Transformer(width)
        self.norm_trans = nn.BatchNorm1d(WIDTH)
        self.pool = nn.ModuleDict(
            {"linear1": nn.Linear(WIDTH, 2 * WIDTH), "linear2": nn.Linear(2 * WIDTH, 1), "linear3": nn.Linear(WIDTH, 1)}
        )

    def forward(self, x_STC: Tensor) -> Tensor:
        x = self.transformer(self.norm_input(x_STC.transpose(1, 2)).transpose(1, 2))
        x = self.norm_trans(x.transpose(1, 2)).transpose(1, 2)
        attention = self.pool["linear2"](functional.relu(self.pool["linear1"](x))).softmax(dim=1)
        return torch.sigmoid(self.pool["linear3"]((attention * x).sum(dim=1)))[:, 0]


class _Transformer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.position_encoding = nn.Module()
        self.position_encoding.register_buffer("pe", torch.zeros(1, FRAMES, WIDTH))
        self.linear_proj = nn.Linear(width, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.transformer_encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

    def forward(self, x_STC: Tensor) -> Tensor:
        x = self.linear_proj(self.norm(x_STC.transpose(1, 2)).transpose(1, 2))
        position: Any = self.position_encoding.pe
        return self.transformer_encoder(x + position)


def load_net() -> Net:
    """The network with the package's weights, frozen. The file is read as tensors only, never as code."""
    spec = importlib.util.find_spec("distillmos")
    folder = Path(spec.origin).parent / "weights" if spec and spec.origin else Path()
    files = sorted(folder.glob("distill_mos_v*.pt"))
    if not files:
        raise ModelError("the package distillmos holds no weights", fix="pip install --no-deps distillmos")
    net = Net()
    state: Mapping[str, Tensor] = torch.load(files[-1], map_location="cpu", weights_only=True)["model"]
    check_finite(state, str(files[-1]))
    try:
        net.load_state_dict(state)
    except RuntimeError as error:
        raise ModelError(
            f"'{files[-1].name}' of distillmos is another network", why=str(error)[:300], fix="install distillmos 0.9"
        ) from error
    return net.eval().requires_grad_(False)
