"""Features of sounds whose features are known, and of recorded speech beside Praat's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_plugin_tts.audio import Clip, clip_of, read_clip
from rlhf_plugin_tts.features import FEATURES, Analysis, hnr, measure, voiced_fraction

RATE = 16000
TIME = np.arange(2 * RATE) / RATE


def voice(hz: np.ndarray | float, noise: float = 0.0) -> Clip:
    """Twelve harmonics, and noise relative to their level."""
    phase = 2 * np.pi * np.cumsum(np.broadcast_to(hz, TIME.shape)) / RATE
    harmonics = sum(np.sin(k * phase) / k for k in range(1, 13))
    harmonics = 0.3 * harmonics / np.std(harmonics)
    noisy = harmonics + 0.3 * noise * np.random.default_rng(0).standard_normal(len(TIME))
    return clip_of(0.3 * noisy, RATE)


@pytest.mark.parametrize("hz", [90.0, 155.0, 240.0, 480.0])
def test_the_pitch_of_a_steady_voice(hz: float) -> None:
    analysis = Analysis(voice(hz, noise=0.05))
    assert analysis.track.voiced.mean() > 0.98
    assert np.abs(analysis.track.hz_T[analysis.track.voiced] / hz - 1).max() < 0.01


@pytest.mark.slow
def test_pitch_variance_is_in_semitones_squared() -> None:
    swing = 3.0 * np.sin(2 * np.pi * 1.5 * TIME)  # variance 4.5 semitones squared, in every register
    low, high = (measure(voice(base * 2 ** (swing / 12)))["pitch_variance"] for base in (110, 220))
    assert low == pytest.approx(4.5, rel=0.08)
    assert high == pytest.approx(4.5, rel=0.08)
    assert measure(voice(150.0))["pitch_variance"] < 0.01


@pytest.mark.parametrize("noise", [0.1, 0.3])
def test_hnr_of_a_voice_in_white_noise_is_its_ratio(noise: float) -> None:
    assert hnr(voice(150.0, noise)) == pytest.approx(-20 * math.log10(noise), abs=1.0)


@pytest.mark.slow
def test_silence_flatness_and_voicing() -> None:
    noise = clip_of(0.1 * np.random.default_rng(1).standard_normal(2 * RATE), RATE)
    half = clip_of(np.concatenate([voice(150.0).samples[:RATE], np.zeros(RATE, np.float32)]), RATE)
    assert measure(noise)["voiced_fraction"] < 0.05
    assert measure(noise)["spectral_flatness"] > 0.5
    assert measure(voice(150.0))["spectral_flatness"] < 0.01
    assert measure(half)["silence_fraction"] == pytest.approx(0.5, abs=0.03)
    assert voiced_fraction(half) == pytest.approx(0.5, abs=0.03)
    assert measure(noise)["spectral_centroid"] == pytest.approx(4000, rel=0.03)


@pytest.mark.slow
def test_dynamics_and_rate_follow_the_syllables() -> None:
    syllables = 0.1 + 0.9 * np.square(np.sin(np.pi * 4 * TIME))  # four a second, 20 dB deep
    spoken = clip_of(voice(140.0).samples * syllables.astype(np.float32), RATE)
    assert measure(spoken)["speaking_rate"] == pytest.approx(4.0, abs=0.5)
    assert measure(voice(140.0))["speaking_rate"] <= 0.5
    assert 14 < measure(spoken)["energy_dynamics"] < 20
    assert measure(voice(140.0))["mfcc_stability"] > 2 * measure(spoken)["mfcc_stability"]


@pytest.mark.parametrize("seconds", [0.01, 0.1])
def test_clips_without_voice_have_no_pitch_and_no_warning(seconds: float) -> None:
    measured = measure(clip_of(np.zeros(int(seconds * 8000)), 8000))
    assert set(measured) == set(FEATURES)
    undefined = {name for name, value in measured.items() if math.isnan(value)}
    assert undefined == {"pitch_variance", "hnr", "mfcc_stability", "spectral_centroid", "spectral_flatness"}
    assert measured["silence_fraction"] == 1.0


def test_a_feature_means_the_same_at_every_rate() -> None:
    from scipy.signal import resample_poly

    at_16 = voice(150.0, noise=0.2)
    at_48 = clip_of(resample_poly(at_16.samples, 3, 1), 3 * RATE)
    measured = measure(at_48)
    for name, value in measure(at_16).items():
        assert measured[name] == pytest.approx(value, rel=0.1, abs=0.02), name


def test_praat_agrees_on_voicing_and_harmonicity(test_data: Path) -> None:
    parselmouth: Any = pytest.importorskip("parselmouth")
    from scipy.stats import spearmanr

    files = sorted((test_data / "speech_mushra").glob("stim_*/*.flac"))[::2]
    ours, theirs = [], []
    for file in files:
        analysis = Analysis(read_clip(file))
        ours.append((voiced_fraction(analysis), hnr(analysis)))
        sound = parselmouth.Sound(analysis.samples.astype(np.float64), RATE)
        track = sound.to_pitch_ac(time_step=0.01).selected_array
        strength = track["strength"][track["frequency"] > 0].clip(1e-6, 1 - 1e-6)
        theirs.append(((track["frequency"] > 0).mean(), np.mean(10 * np.log10(strength / (1 - strength)))))
    assert len(files) == 32
    for column in (0, 1):
        rank = spearmanr([row[column] for row in ours], [row[column] for row in theirs])[0]
        assert rank >= 0.95
