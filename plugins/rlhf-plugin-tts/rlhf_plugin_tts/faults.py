"""What tells clean speech from damaged speech, and from sounds that are not speech at all; of a clip at 16 kHz."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rlhf_plugin_tts.features import FEATURES, N_FFT, RATE, Analysis, Floats, mel_levels

BANDS = 32
"""Of 250 Hz each, in which the bandwidth is looked for."""
AUDIBLE_DB, MOVES_DB = 45.0, 4.0
"""A band is audible that comes so near to the loudest, and rises so far above its own median."""
LOUD_DB = 15.0
"""A frame is loud that is at most so far below the clip's 95th percentile."""
BLOCK, FALL_DB, ACTIVE_DB = 80, 30.0, 35.0
"""A drop-out: a block of 5 ms, so far below the loudest at most, is followed within 10 ms by one so far below it."""
PEAK = 0.97
"""Samples from here on, of the largest, are at the peak."""
LEAST_VOICED, LEAST_MOVEMENT, LEAST_BANDWIDTH, MOST_TONALITY = 0.01, 2.5, 1000.0, 40.0
"""Sound beyond one of these is not speech: noise, a steady sound, a tone, a tone that glides."""


def bandwidth(analysis: Analysis) -> float:
    """Highest frequency at which the spectrum rises and falls with the speech, in Hz; 0 of a steady sound."""
    power_TF = analysis.power[analysis.sounding][:, : N_FFT // 2]
    if not len(power_TF):
        return 0.0
    level_TB = 10 * np.log10(np.maximum(power_TF.reshape(len(power_TF), BANDS, -1).mean(axis=2), 1e-12))
    middle_B, top_B = np.percentile(level_TB, [50, 95], axis=0)
    audible = np.flatnonzero((top_B > top_B.max() - AUDIBLE_DB) & (top_B > middle_B + MOVES_DB))
    return float((audible[-1] + 1) * RATE / 2 / BANDS) if len(audible) else 0.0


def noise_floor(analysis: Analysis) -> float:
    """Level of the weakest fifth of the spectrum below the bandwidth, relative to its 80th percentile, in loud frames,
    in dB."""
    power_TF = _loud_spectrum(analysis, LEAST_BANDWIDTH)
    count = power_TF.shape[1] // 5
    weakest_T = power_TF[:, :count].mean(axis=1)
    return float(10 * np.log10(np.maximum(weakest_T, 1e-15) / np.maximum(power_TF[:, -count], 1e-12)).mean())


def tonality(analysis: Analysis) -> float:
    """Mean of the spectrum to 4 kHz at least, relative to its 80th percentile, in dB: high of a few lines."""
    power_TF = _loud_spectrum(analysis, 4000.0)
    strong_T = np.maximum(power_TF[:, -(power_TF.shape[1] // 5)], 1e-15)
    return float(10 * np.log10(np.maximum(power_TF.mean(axis=1), 1e-12) / strong_T).mean())


def _loud_spectrum(analysis: Analysis, least_hz: float) -> Floats:
    """Power from 100 Hz to the bandwidth of the loud frames, each frame's sorted."""
    loud_T = analysis.level > np.percentile(analysis.level, 95) - LOUD_DB
    last = round(max(bandwidth(analysis), least_hz) * N_FFT / RATE)
    return np.sort(analysis.power[loud_T][:, 3:last], axis=1)


def movement(analysis: Analysis) -> float:
    """Standard deviation over time of the spectrum's shape (40 mel bands less their mean), in dB."""
    level_TM = mel_levels(analysis)[analysis.sounding]
    shape_TM = level_TM - level_TM.mean(axis=1, keepdims=True)
    return float(shape_TM.std(axis=0).mean()) if len(shape_TM) else 0.0


def peak_share(analysis: Analysis) -> float:
    """Samples at the clip's own peak, at its own sample rate, per thousand: many where it was clipped."""
    size_N = np.abs(analysis.original)
    return float(1000 * (size_N >= PEAK * size_N.max()).mean())


def drop_outs(analysis: Analysis) -> float:
    """Falls to near silence within 10 ms, per second."""
    samples = analysis.samples[: len(analysis.samples) // BLOCK * BLOCK]
    if len(samples) < 3 * BLOCK:
        return 0.0
    level_T: Floats = 10 * np.log10(np.maximum(np.square(samples).reshape(-1, BLOCK).mean(axis=1), 1e-12))
    active_T = level_T[:-2] > level_T.max() - ACTIVE_DB
    return float((active_T & (level_T[2:] < level_T[:-2] - FALL_DB)).mean() * RATE / BLOCK)


FAULTS: dict[str, Callable[[Analysis], float]] = {
    f.__name__: f for f in (bandwidth, noise_floor, movement, peak_share, drop_outs)
}
MEASURES: dict[str, Callable[[Analysis], float]] = {**FEATURES, **FAULTS}
"""All that the acoustic proxy can be told to weigh."""


def is_speech(analysis: Analysis) -> bool:
    """Whether a clip can be speech: some of it is voiced, its spectrum moves, is wide enough, and is no mere tone."""
    voiced = FEATURES["voiced_fraction"](analysis) >= LEAST_VOICED * float(analysis.sounding.mean())
    wide = bandwidth(analysis) >= LEAST_BANDWIDTH and tonality(analysis) <= MOST_TONALITY
    return bool(voiced and wide and movement(analysis) >= LEAST_MOVEMENT)
