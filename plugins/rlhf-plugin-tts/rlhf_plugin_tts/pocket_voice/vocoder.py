"""Parameters to speech: pulses and noise through the envelope's minimum-phase filter, overlapped and added."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rlhf_plugin_tts.pocket_voice.analysis import FFT, HOP, RATE, Floats, cosine_basis

_BASIS = cosine_basis()
_NOISE_FROM, _NOISE_FULL = 3000.0, 6500.0
"""Hz: in voiced speech noise takes over between these."""


def synthesise(f0: Floats, voiced: npt.NDArray[np.bool_], cepstra: Floats) -> npt.NDArray[np.float32]:
    """Audio in [-1, 1] at 16 kHz of ``f0`` (Hz), ``voiced`` and ``cepstra`` ``[frames, CEPSTRA]`` per 10 ms."""
    length = len(f0) * HOP
    out = np.zeros(length + 2 * FFT)
    times = _pulses(f0, voiced)
    at = np.clip((times - HOP / 2) / HOP, 0, len(f0) - 1)
    if len(at):
        log_power = _between(cepstra, at) @ _BASIS.T
        share = _aperiodicity()
        pulse = np.sqrt(RATE / np.interp(at, np.arange(len(f0)), f0))[:, None] * np.sqrt(1 - share)
        _add(out, times, _responses(log_power) * pulse, FFT)
    _add_noise(out, voiced, cepstra)
    wave = out[FFT : FFT + length]
    peak = np.abs(wave).max(initial=0.0)
    return (wave * min(1.0, 0.95 / peak) if peak else wave).astype(np.float32)


def _pulses(f0: Floats, voiced: npt.NDArray[np.bool_]) -> Floats:
    """Times of the glottal pulses in samples, fractions included."""
    samples = np.arange(len(f0) * HOP)
    frame = (samples - HOP / 2) / HOP
    phase = np.cumsum(np.interp(frame, np.arange(len(f0)), f0) / RATE)
    turns = np.flatnonzero(np.diff(np.floor(phase)) > 0)
    fraction = (np.ceil(phase[turns]) - phase[turns]) / (phase[turns + 1] - phase[turns])
    times = turns + fraction
    return times[voiced[np.minimum((times // HOP).astype(int), len(voiced) - 1)]] if len(times) else times


def _between(cepstra: Floats, at: Floats) -> Floats:
    low = np.minimum(at.astype(int), len(cepstra) - 1)
    high = np.minimum(low + 1, len(cepstra) - 1)
    part = (at - low)[:, None]
    return cepstra[low] * (1 - part) + cepstra[high] * part


def _aperiodicity() -> Floats:
    """Share of the power that is noise in voiced speech, per bin."""
    hz = np.arange(FFT // 2 + 1) * RATE / FFT
    return np.clip((hz - _NOISE_FROM) / (_NOISE_FULL - _NOISE_FROM), 0.0, 0.9)[None, :]


def _responses(log_power: Floats) -> npt.NDArray[np.complexfloating]:
    """Minimum-phase spectra of a log power spectrum (folded real cepstrum; Oppenheim & Schafer)."""
    real = np.fft.irfft(0.5 * log_power)
    real[:, 1 : FFT // 2] *= 2
    real[:, FFT // 2 + 1 :] = 0
    return np.exp(np.fft.rfft(real))


def _add(out: Floats, times: Floats, spectra: npt.NDArray[np.complexfloating], shift: int) -> None:
    """Add every response at its time; the fraction of a sample is a phase."""
    starts = np.floor(times).astype(int)
    delay = np.exp(-2j * np.pi * np.outer(times - starts, np.arange(FFT // 2 + 1)) / FFT)
    parts = np.fft.irfft(spectra * delay)
    np.add.at(out, starts[:, None] + shift + np.arange(FFT), parts)


def _add_noise(out: Floats, voiced: npt.NDArray[np.bool_], cepstra: Floats) -> None:
    """White noise, windowed every 10 ms and filtered; only its high part where there is voice."""
    length, window = len(voiced) * HOP, np.sqrt(np.hanning(2 * HOP + 1)[:-1])
    noise = np.pad(np.random.default_rng(0).standard_normal(length + HOP), (HOP // 2, HOP))
    starts = np.arange(len(voiced)) * HOP
    pieces = noise[starts[:, None] + np.arange(2 * HOP)] * window
    share = np.where(voiced[:, None], _aperiodicity(), 1.0)
    spectra = np.fft.rfft(pieces, FFT) * _responses(cepstra @ _BASIS.T) * np.sqrt(share)
    parts = np.fft.irfft(spectra)
    np.add.at(out, (starts - HOP // 2)[:, None] + FFT + np.arange(FFT), parts)
