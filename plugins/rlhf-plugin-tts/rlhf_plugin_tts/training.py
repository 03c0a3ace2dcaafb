"""Trains a reward model on pairs of clips (Bradley and Terry 1952), no clip in both training and test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import logsigmoid

from rlhf_core.data import DatasetError, whole_folder, write_json
from rlhf_core.models import check_finite, preserved_rng
from rlhf_plugin_tts.audio import ClipError, read_clip
from rlhf_plugin_tts.clip_reward import check_clip
from rlhf_plugin_tts.features import FEATURES
from rlhf_plugin_tts.rows import AudioPair, digest
from rlhf_plugin_tts.store import META, WEIGHTS
from rlhf_plugin_tts.trained import ClipEncoder, Head

CENTRING = 0.01
"""Weight of ``(chosen + rejected)^2``, which keeps scores near zero (Eisenstein et al. 2023)."""


@dataclass(frozen=True)
class HeadSettings:
    hidden: int = 32
    """Units of its hidden layer; 0 is a linear head."""
    dropout: float = 0.1
    epochs: int = 20
    batch_size: int = 16
    learning_rate: float = 3e-3
    weight_decay: float = 0.01
    seed: int = 0
    random_labels: bool = False
    """A control: which clip of a pair is called chosen is drawn by chance, in training only."""


class EncodedClips:
    """The vector of each clip, computed once; clips that cannot be read are kept with the reason."""

    def __init__(self, encoder: ClipEncoder, progress: Callable[[int], None] = lambda n: None) -> None:
        self.encoder, self.progress = encoder, progress
        self.vectors: dict[str, Tensor] = {}
        self.unusable: dict[str, str] = {}

    def pairs(self, pairs: Sequence[AudioPair]) -> tuple[Tensor, list[AudioPair]]:
        """Vectors ``[P, 2, F]`` of the pairs of which both clips can be read, and those pairs."""
        for pair in pairs:
            self._encode(pair.chosen)
            self._encode(pair.rejected)
        good = [p for p in pairs if digest(p.chosen) in self.vectors and digest(p.rejected) in self.vectors]
        if len(good) < 2:
            reason = next(iter(self.unusable.values()), "there are too few rows")
            raise DatasetError(f"only {len(good)} of {len(pairs)} pairs can be used", why=reason)
        rows = [torch.stack([self.vectors[digest(p.chosen)], self.vectors[digest(p.rejected)]]) for p in good]
        return torch.stack(rows), good

    def _encode(self, path: Path) -> None:
        name = digest(path)
        if name in self.vectors or name in self.unusable:
            return
        try:
            clip = read_clip(path)
            check_clip(clip)
            self.vectors[name] = self.encoder.encode(clip).clone()
        except ClipError as error:
            self.unusable[name] = str(error)
        self.progress(1)


def train_head(pairs_P2F: Tensor, settings: HeadSettings) -> Head:
    """Minimise ``-log sigmoid(chosen - rejected)`` with AdamW."""
    with preserved_rng():
        torch.manual_seed(settings.seed)
        rng = np.random.default_rng(settings.seed)
        count, _, width = pairs_P2F.shape
        if settings.random_labels:
            turned = torch.from_numpy(rng.random(count) < 0.5)
            pairs_P2F = torch.where(turned[:, None, None], pairs_P2F.flip(1), pairs_P2F)
        head = standardised(pairs_P2F.reshape(-1, width), settings.hidden, settings.dropout)
        optimizer = torch.optim.AdamW(head.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
        head.train()
        for _ in range(settings.epochs):
            for batch in torch.from_numpy(rng.permutation(count)).split(settings.batch_size):
                chosen, rejected = head(pairs_P2F[batch, 0]), head(pairs_P2F[batch, 1])
                loss = -logsigmoid(chosen - rejected).mean() + CENTRING * (chosen + rejected).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return head.eval()


def standardised(vectors_NF: Tensor, hidden: int, dropout: float = 0.0) -> Head:
    """A new head that standardises as these vectors say."""
    head = Head(vectors_NF.shape[1], hidden, dropout)
    head.load_state_dict({**head.state_dict(), "mean": vectors_NF.mean(dim=0), "std": spread(vectors_NF)})
    return head


def spread(vectors_NF: Tensor) -> Tensor:
    """Standard deviation of each column; the largest number where it is constant, so that it counts nothing."""
    std_F = vectors_NF.std(dim=0)
    least_F = 1e-5 * vectors_NF.abs().mean(dim=0) + 1e-9
    return torch.where(std_F > least_F, std_F, torch.full_like(std_F, torch.finfo(std_F.dtype).max))


def accuracy(head: Head, pairs_P2F: Tensor, groups: Sequence[str], seed: int = 0) -> dict[str, Any]:
    """Pairwise accuracy with a 95% bootstrap interval over groups without a common clip."""
    with torch.inference_mode():
        margins = (head(pairs_P2F[:, 0]) - head(pairs_P2F[:, 1])).numpy()
    right = np.where(margins == 0, 0.5, margins > 0)
    names = sorted(set(groups))
    rows_of = [np.flatnonzero(np.array([g == name for g in groups])) for name in names]
    rng = np.random.default_rng(seed)
    draws = [
        right[np.concatenate([rows_of[i] for i in rng.integers(0, len(names), len(names))])].mean() for _ in range(1000)
    ]
    low, high = np.percentile(draws, [2.5, 97.5])
    return {
        "accuracy": float(right.mean()),
        "interval": [float(low), float(high)],
        "pairs": len(right),
        "groups": len(names),
    }


def save(head: Head, folder: Path, source: str, encoder: str, settings: HeadSettings, quality: dict[str, Any]) -> None:
    """Write a folder that ``audio_feature_model`` or ``audio_encoder_model`` loads."""
    layers: Any = head.layers
    meta = {
        "input": source,
        "features": list(FEATURES) if source == "features" else [],
        "encoder": encoder,
        "width": int(head.get_buffer("mean").shape[0]),
        "hidden": settings.hidden if isinstance(layers, torch.nn.Sequential) else 0,
        "training": vars(settings),
        "quality": quality,
    }
    with whole_folder(folder) as aside:
        write_json(aside / META, meta)
        check_finite(head.state_dict(), str(folder))
        save_file({k: v.contiguous() for k, v in head.state_dict().items()}, str(aside / WEIGHTS))
