"""Speech to log-F0, voicing and a mel-cepstrum of the spectral envelope, every 10 ms of 16 kHz audio. The envelope
follows the first two steps of CheapTrick (Morise 2015, Speech Communication 67)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rlhf_plugin_tts.pitch import best_path

RATE = 16_000
"""Hz."""
HOP = 160
"""Samples between two parameter frames: 10 ms."""
FFT = 1024
BANDS, CEPSTRA = 48, 24
LOWEST, HIGHEST = 60.0, 320.0
"""Hz: where the fundamental is looked for."""
FLOOR = 1e-9

Floats = npt.NDArray[np.floating[Any]]


def mel(hz: Floats) -> Floats:
    """Mel scale of O'Shaughnessy (1987): ``2595 log10(1 + f / 700)``."""
    return 2595.0 * np.log10(1.0 + hz / 700.0)


def cosine_basis() -> Floats:
    """``[FFT / 2 + 1, CEPSTRA]``: what each coefficient adds to the log power at every frequency bin."""
    warped = mel(np.arange(FFT // 2 + 1) * RATE / FFT) / mel(np.array(RATE / 2))
    return np.cos(np.pi * np.outer(warped, np.arange(CEPSTRA)))


def framed(wave: Floats, size: int) -> Floats:
    """Windows of ``size`` samples around every hop's middle, ``[frames, size]``."""
    count = max(1, len(wave) // HOP)
    padded = np.pad(wave, (size // 2, size // 2 + HOP))
    starts = np.arange(count) * HOP + HOP // 2
    return padded[starts[:, None] + np.arange(size)]


def fundamental(wave: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """F0 in Hz and voicing per frame: normalised autocorrelation, and the smoothest path through its best lags."""
    frames = framed(wave, 640) * np.hanning(640)
    window = np.fft.irfft(np.abs(np.fft.rfft(np.hanning(640), 2048)) ** 2)
    correlation = np.fft.irfft(np.abs(np.fft.rfft(frames, 2048)) ** 2)
    energy = correlation[:, :1] + FLOOR
    correlation = correlation / energy / (window / window[0] + 1e-3)
    shortest, longest = int(RATE / HIGHEST), int(RATE / LOWEST)
    lags = correlation[:, shortest : longest + 1]
    peaks = (lags[:, 1:-1] >= lags[:, :-2]) & (lags[:, 1:-1] > lags[:, 2:])
    strength = np.where(peaks, lags[:, 1:-1], -1.0)
    best = np.argsort(-strength, axis=1)[:, :5]
    score = np.take_along_axis(strength, best, 1)
    pitch = np.log(RATE / (best + shortest + 1))
    score = score - 0.02 * (np.log(HIGHEST) - pitch)
    path = best_path(score, np.abs(pitch[:-1, :, None] - pitch[1:, None, :]))  # a jump costs its size in octaves
    chosen = pitch[np.arange(len(path)), path]
    periodic = np.take_along_axis(score, path[:, None], 1)[:, 0]
    loud = 10 * np.log10(energy[:, 0] / energy.max()) > -45
    voiced = (periodic > 0.55) & loud
    voiced = _without_short(voiced)
    return np.exp(chosen), voiced


def _without_short(voiced: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Majority of three neighbours."""
    padded = np.pad(voiced.astype(int), 1, mode="edge")
    return (padded[:-2] + padded[1:-1] + padded[2:]) >= 2


def envelope(wave: Floats, f0: Floats, voiced: npt.NDArray[np.bool_]) -> Floats:
    """Log power of the spectral envelope, ``[frames, FFT / 2 + 1]``; a stationary white noise of power 1 gives 0."""
    f0 = np.where(voiced, f0, 160.0)
    frames = framed(wave, FFT)
    offsets = np.arange(FFT) - FFT // 2
    half = np.minimum(1.5 * RATE / f0, FFT // 2 - 1)[:, None]
    window = np.where(np.abs(offsets) < half, 0.5 + 0.5 * np.cos(np.pi * offsets / half), 0.0)
    window /= np.sqrt((window**2).sum(1, keepdims=True))
    power = np.abs(np.fft.rfft(frames * window)) ** 2 + FLOOR
    edges = np.cumsum(np.concatenate([power[:, 64:0:-1], power, power[:, -2:-66:-1]], 1), 1)
    width = np.maximum(2, np.rint(f0 * 2 / 3 / (RATE / FFT) / 2).astype(int))[:, None]
    bins = np.arange(FFT // 2 + 1)[None, :] + 64
    high = np.take_along_axis(edges, bins + width, 1)
    low = np.take_along_axis(edges, bins - width - 1, 1)
    return np.log((high - low) / (2 * width + 1))


def cepstrum(log_power: Floats) -> Floats:
    """Mel-cepstrum ``[frames, CEPSTRA]``: least squares on a mel-spaced grid."""
    bins = np.interp(
        np.linspace(0, 1, BANDS * 2),
        mel(np.arange(FFT // 2 + 1.0) * RATE / FFT) / mel(np.array(RATE / 2)),
        np.arange(FFT // 2 + 1),
    ).astype(int)
    basis = cosine_basis()[bins]
    return log_power[:, bins] @ np.linalg.pinv(basis).T


def analyse(wave: Floats) -> tuple[Floats, npt.NDArray[np.bool_], Floats]:
    """F0 (Hz), voicing and mel-cepstrum of 16 kHz mono audio in [-1, 1], per 10 ms."""
    f0, voiced = fundamental(wave)
    return f0, voiced, cepstrum(envelope(wave, f0, voiced))
