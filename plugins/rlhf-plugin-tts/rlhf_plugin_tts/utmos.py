"""UTMOS22's strong learner on transformers' wav2vec 2.0, in the form in which its weights are on the hub."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_core.models import ModelError, check_finite
from rlhf_core.rewards import Sample
from rlhf_plugin_tts.audio import Clip
from rlhf_plugin_tts.clip_reward import ClipReward
from rlhf_plugin_tts.config import Utmos22Config

RATE = 16000
CHECKPOINT = "utmos.ckpt"
ENCODER_PREFIX = "ssl_encoder.model."
WEIGHT_NORM = {"weight_g": "parametrizations.weight.original0", "weight_v": "parametrizations.weight.original1"}
"""Names of weight norm in earlier versions of torch -> today's."""


class Utmos22(ClipReward):
    """Predicted mean opinion score, about 1 to 5 (Saeki et al. 2022, section 2.2: the strong learner)."""

    def __init__(self, config: Utmos22Config) -> None:
        super().__init__(config.max_seconds)
        state = read_checkpoint(config.checkpoint)
        self.encoder = load_encoder(config.encoder)
        with_norm = self.encoder.state_dict()
        tuned = {n: v for name, v in state.items() if (n := _encoder_name(name)) in with_norm}
        self.encoder.load_state_dict(tuned, strict=False)
        self.head = Head({name: value for name, value in state.items() if not name.startswith("ssl_encoder.")})
        self.judge, self.domain = config.judge, config.domain

    @torch.inference_mode()
    def measure(self, clip: Clip, sample: Sample) -> tuple[float, Mapping[str, float]]:
        samples = torch.from_numpy(clip.at(RATE).samples)[None]
        return float(self.head(self.encoder(samples).last_hidden_state, self.domain, self.judge)), {}


class Head(nn.Module):
    """Embeddings of domain and judge beside every frame, a bidirectional LSTM, two layers, the mean over frames."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        try:
            domains, domain_width = state["domain_embedding.weight"].shape
            judges, judge_width = state["judge_embedding.weight"].shape
            self.domain_embedding = nn.Embedding(domains, domain_width)
            self.judge_embedding = nn.Embedding(judges, judge_width)
            gates, width = state["decoder.weight_ih_l0"].shape
            self.decoder = nn.LSTM(width, gates // 4, batch_first=True, bidirectional=True)
            hidden, inner = state["classifier.0.weight"].shape
            layers = (nn.Linear(inner, hidden), nn.ReLU(), nn.Dropout(0.3), nn.Linear(hidden, 1))
            self.classifier = nn.Sequential(*layers)
            self.load_state_dict(dict(state))
        except (KeyError, RuntimeError) as error:
            raise ModelError(f"{CHECKPOINT} does not hold UTMOS22's head", why=str(error)[:300]) from error
        self.eval().requires_grad_(False)

    def forward(self, frames_BTC: Tensor, domain: int, judge: int) -> Tensor:
        """Scores ``[B]``."""
        batch, time, _ = frames_BTC.shape
        rows = [
            table(torch.full((batch,), index)).unsqueeze(1).expand(-1, time, -1)
            for table, index in ((self.domain_embedding, domain), (self.judge_embedding, judge))
        ]
        decoded, _ = self.decoder(torch.cat([frames_BTC, *rows], dim=2))
        return self.classifier(decoded).mean(dim=1)[:, 0] * 2 + 3


def read_checkpoint(path: str) -> Mapping[str, Tensor]:
    """The weights, read as tensors only, never as code."""
    file = Path(path).expanduser() / CHECKPOINT
    if not file.is_file():
        hub: Any = importlib.import_module("huggingface_hub")
        try:
            file = Path(hub.hf_hub_download(path, CHECKPOINT))
        except Exception as error:
            raise ModelError(
                f"'{path}' holds no {CHECKPOINT}, here or on the hub",
                why=str(error).strip().splitlines()[0],
                fix="reward.checkpoint=FOLDER that holds it, or a connection to the hub",
            ) from error
    try:
        weights: Mapping[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ModelError(f"'{file}' is not a file of weights", why=str(error).splitlines()[0]) from error
    check_finite(weights, str(file))
    return weights


def load_encoder(path: str) -> Any:
    forms = "the folder of a wav2vec 2.0, HuBERT or WavLM in Hugging Face form, or its hub id"
    return load_frozen("AutoModel", path, "a speech encoder", f"give {forms}")


def load_frozen(auto_class: str, path: str, what: str, fix: str) -> Any:
    transformers: Any = importlib.import_module("transformers")
    try:
        model = getattr(transformers, auto_class).from_pretrained(path).eval().requires_grad_(False)
    except (OSError, ValueError, KeyError) as error:
        why = str(error).strip().splitlines()[0]
        raise ModelError(f"'{path}' is not {what} that transformers loads", why=why, fix=fix) from error
    check_finite(model.state_dict(), path)
    return model


def _encoder_name(name: str) -> str:
    name = name.removeprefix(ENCODER_PREFIX)
    return re.sub(r"weight_[gv]$", lambda found: WEIGHT_NORM[found[0]], name)
