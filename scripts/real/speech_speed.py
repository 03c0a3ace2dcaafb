"""Speed of the acoustic features and of every local speech reward.

    OMP_NUM_THREADS=1 python -m scripts.real.speech_speed --data FOLDER --record docs/bench/speech_speed.json

Features: processor milliseconds per second of 16 kHz audio, beside a plain librosa implementation of the seven that the
acoustic proxy was proposed with (``pyin`` for the pitch), both sides in turns in one process, after a warm-up. Rewards:
processor seconds per clip in this process, and clips per second in one and in two reward workers of one thread each, by
the wall clock, which on a busy machine says what was left for them; the load is recorded beside.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import librosa
import numpy as np

from rlhf_core.data import Media, Prompt
from rlhf_core.data.atomic import write_json
from rlhf_core.plugins.registry import Registry
from rlhf_core.rewards import Sample
from rlhf_core.workers.reward_workers import RewardWorkers
from rlhf_plugin_tts.audio import Clip, read_clip
from rlhf_plugin_tts.features import measure
from rlhf_testing import make_context
from scripts.bench.__main__ import commit, machine

REWARDS = ("acoustic_proxy", "duration", "dnsmos", *(("distillmos",) if find_spec("distillmos") else ()), "wer")
TEXT = "Somebody says a sentence of about this length here."


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


def feature_speed(clips: Sequence[Clip]) -> dict[str, Any]:
    """Medians over the clips of processor time per second of audio."""
    sides: dict[str, Callable[[Clip], Any]] = {"ours": measure, "librosa": plain_librosa}
    for side in sides.values():
        side(clips[0])
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for clip in clips:
        for name, side in sides.items():
            before = time.process_time()
            side(clip)
            spent[name].append(1000 * (time.process_time() - before) / clip.seconds)
    medians = {f"{name}_ms_per_second": statistics.median(values) for name, values in spent.items()}
    return {**medians, "ratio": medians["librosa_ms_per_second"] / medians["ours_ms_per_second"], "clips": len(clips)}


def reward_speed(samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """Reward -> processor seconds per clip, and clips per second with one and two workers."""
    import torch

    torch.set_num_threads(1)
    registry = Registry(disabled=())
    speeds: dict[str, dict[str, float]] = {}
    for name in REWARDS:
        config = registry.load("reward", name).model_validate({})
        reward = config.build(make_context(registry=registry))
        reward.score(samples[:1])
        before = time.process_time()
        reward.score(samples)
        speeds[name] = {"processor_seconds_per_clip": (time.process_time() - before) / len(samples)}
        for count in (1, 2):
            workers = RewardWorkers(config, make_context(registry=registry), workers=count, timeout_s=120)
            try:
                workers.score(samples[: 2 * count])
                started = time.perf_counter()
                scores = workers.score(samples)
                speeds[name][f"clips_per_second_{count}"] = len(samples) / (time.perf_counter() - started)
            finally:
                workers.close()
            speeds[name]["scored"] = sum(score.ok for score in scores)
        print(name, speeds[name], flush=True)
    return speeds


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--clips", type=int, default=16)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    files = sorted((options.data / "speech_mushra").glob("stim_*/*.flac"))
    files = files[:: max(1, len(files) // options.clips)][: options.clips]
    before = os.getloadavg()
    features = feature_speed([read_clip(file).at(16000) for file in files])
    print(features, flush=True)
    prompt = Prompt("speech/0", ({"role": "user", "content": TEXT},))
    rewards = reward_speed([Sample(prompt, TEXT, media=(Media("audio", path=str(file)),)) for file in files])
    seconds = statistics.mean(read_clip(file).seconds for file in files)
    record = {"features": features, "rewards": rewards, "clips": len(files), "mean_seconds": seconds}
    record |= {"load_before": before, "load_after": os.getloadavg(), "commit": commit(), "machine": machine()}
    if options.record:
        write_json(options.record, record)


if __name__ == "__main__":
    main()
