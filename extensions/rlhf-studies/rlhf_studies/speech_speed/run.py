"""Processor time of features, beside librosa, and of rewards."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import librosa
import numpy as np

from rlhf_core.cli import context_of, open_registry
from rlhf_core.data import Media, Prompt
from rlhf_core.rewards import Sample
from rlhf_plugin_tts.audio import Clip, read_clip
from rlhf_plugin_tts.features import measure
from rlhf_studies.common.outside import data_file
from rlhf_studies.common.study import Study
from rlhf_studies.common.tables import markdown, mean
from rlhf_studies.speech_speed.config import SpeechSpeedConfig

TEXT = "Somebody says a sentence of about this length here."


class SpeechSpeed(Study[SpeechSpeedConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        files = sorted(data_file(self.config.data, "speech_mushra").glob("stim_*/*.flac"))
        files = files[:: max(1, len(files) // self.config.clips)][: self.config.clips]
        clips = [read_clip(file).at(16000) for file in files]
        prompt = Prompt("speech/0", ({"role": "user", "content": TEXT},))
        samples = [Sample(prompt, TEXT, media=(Media("audio", path=str(file)),)) for file in files]
        names = [name for name in self.config.rewards if name != "distillmos" or find_spec("distillmos")]
        return {
            "clips": len(clips),
            "mean_seconds": mean(clip.seconds for clip in clips),
            "features": of_features(clips),
            "rewards": {name: of_reward(name, samples) for name in names},
        }

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        figures = next(iter(results.values()))
        table = markdown(("reward", "processor s per clip"), [(n, f"{s:.4f}") for n, s in figures["rewards"].items()])
        return f"{table}\n\nFeatures: {figures['features']['ratio']:.1f} times as fast as librosa."


def of_features(clips: Sequence[Clip]) -> dict[str, float]:
    sides: dict[str, Callable[[Clip], Any]] = {"ours": measure, "librosa": plain_librosa}
    spent: dict[str, list[float]] = defaultdict(list)
    for side in sides.values():
        side(clips[0])
    for clip in clips:
        for name, side in sides.items():
            before = time.process_time()
            side(clip)
            spent[name].append(1000 * (time.process_time() - before) / clip.seconds)
    ours, theirs = (median(spent[name]) for name in sides)
    return {"ours_ms_per_second": ours, "librosa_ms_per_second": theirs, "ratio": theirs / ours}


def of_reward(name: str, samples: Sequence[Sample]) -> float:
    registry = open_registry()
    with context_of(registry).open("reward", registry.config("reward", name)) as reward:
        reward.score(samples[:1])
        before = time.process_time()
        reward.score(samples)
        return (time.process_time() - before) / len(samples)


def plain_librosa(clip: Clip) -> list[float]:
    """Pitch variance, HNR, voiced fraction, energy dynamics, MFCC stability, centroid, silence, written plainly."""
    y, rate = clip.samples, clip.rate
    pitch, voiced, _ = librosa.pyin(y, fmin=65.0, fmax=600.0, sr=rate)
    harmonic = librosa.effects.harmonic(y)
    level = librosa.feature.rms(y=y)[0]
    mfcc = librosa.feature.mfcc(y=y, sr=rate, n_mfcc=13)
    spoken = sum(end - start for start, end in librosa.effects.split(y, top_db=40))
    return [
        float(np.nanvar(pitch)),
        float(10 * np.log10((harmonic**2).sum() / max(((y - harmonic) ** 2).sum(), 1e-12))),
        float(voiced.mean()),
        float(level.max() - level.min()),
        float(np.var(np.diff(mfcc, axis=1))),
        float(librosa.feature.spectral_centroid(y=y, sr=rate).mean()),
        1 - spoken / len(y),
    ]
