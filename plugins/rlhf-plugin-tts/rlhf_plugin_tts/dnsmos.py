"""DNSMOS from the ONNX files of the package speechmos, which is located and not imported."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlhf_core.rewards import Sample
from rlhf_plugin_tts.audio import Clip
from rlhf_plugin_tts.clip_reward import ClipReward
from rlhf_plugin_tts.config import DnsmosConfig

Floats = npt.NDArray[np.float32]
RATE = 16000
WINDOW = int(9.01 * RATE)
"""What the networks were trained on, in samples."""
POLYNOMIALS = {
    "sig": (-0.08397278, 1.22083953, 0.0052439),
    "bak": (-0.13166888, 1.60915514, -0.39604546),
    "ovrl": (-0.06766283, 1.11546468, 0.04602535),
}
"""From the network's raw P.835 scores to mean opinions, as published with the weights."""


class Dnsmos(ClipReward):
    """P.808 overall and P.835 speech, background, overall, 1 to 5; a short clip fills exactly one window."""

    def __init__(self, config: DnsmosConfig) -> None:
        super().__init__(config.max_seconds)
        self.config = config
        wants = (not config.only_value or config.value == "p808", not config.only_value or config.value != "p808")
        self.p808 = _session("model_v8.onnx", config.threads) if wants[0] else None
        self.p835 = _session("sig_bak_ovr.onnx", config.threads) if wants[1] else None

    def measure(self, clip: Clip, sample: Sample) -> tuple[float, Mapping[str, float]]:
        scores = [self._window(w) for w in windows(clip.at(RATE).samples, self.config.hop_seconds)]
        parts = {name: float(np.mean([row[name] for row in scores])) for name in scores[0]}
        return parts[self.config.value], parts

    def _window(self, window: Floats) -> dict[str, float]:
        parts: dict[str, float] = {}
        if self.p808 is not None:
            mel = mel_spectrogram(window[:-160])
            parts["p808"] = float(self.p808.run(None, {"input_1": mel[None]})[0][0][0])
        if self.p835 is not None:
            raw = self.p835.run(None, {"input_1": window[None]})[0][0]
            parts |= {n: float(np.polyval(POLYNOMIALS[n], raw[i])) for i, n in enumerate(("sig", "bak", "ovrl"))}
        return parts


def windows(samples: Floats, hop_seconds: float) -> list[Floats]:
    """Windows of 9.01 s: one of a shorter clip, repeated; else one per hop in the clip's whole seconds."""
    samples = np.clip(samples, -1, 1).astype(np.float32)
    if len(samples) <= WINDOW:
        return [np.resize(samples, WINDOW)]
    hop = max(1, round(hop_seconds * RATE))
    last = max(0, len(samples) // RATE * RATE - WINDOW)
    return [samples[i : i + WINDOW] for i in range(0, last + 1, hop)]


def mel_spectrogram(samples: Floats) -> Floats:
    """The input of the P.808 network: 120 mel bands in dB, ``[T, 120]``, about -1 to 1."""
    import librosa

    stft: Any = librosa.stft(samples, n_fft=321, hop_length=160)
    power = np.square(np.abs(stft))
    mel = _filters() @ power
    decibel: Any = librosa.power_to_db(mel, ref=np.max)
    return ((decibel + 40) / 40).T.astype(np.float32)


@lru_cache(1)
def _filters() -> Any:
    import librosa

    return librosa.filters.mel(sr=RATE, n_fft=321, n_mels=120)


def _session(file: str, threads: int) -> Any:
    onnxruntime: Any = importlib.import_module("onnxruntime")
    spec = importlib.util.find_spec("speechmos")
    assert spec is not None
    assert spec.origin is not None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    path = Path(spec.origin).parent / "dnsmos_models" / file
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
