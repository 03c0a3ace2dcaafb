"""Ladders of damage to a clip at 16 kHz, each from little to much, and sounds that are no speech."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import soxr
from scipy.signal import lfilter

Samples = npt.NDArray[np.float32]
RATE = 16_000


def band_limit(x: Samples, hz: int) -> Samples:
    """Nothing above ``hz``, as of a file with twice so many samples per second."""
    narrow = soxr.resample(soxr.resample(x, RATE, 2 * hz), 2 * hz, RATE)
    return np.pad(narrow, (0, max(0, len(x) - len(narrow))))[: len(x)]


def noise(x: Samples, db: float, pole: float = 0.0) -> Samples:
    """White noise, or noise with a pole at low frequencies, so many dB below the clip's level."""
    drawn: Any = lfilter([1.0], [1.0, -pole], np.random.default_rng(0).standard_normal(len(x)))
    return add(x, drawn, db)


def add(x: Samples, other: Any, db: float) -> Samples:
    return (x + np.asarray(other) * np.sqrt(np.mean(x**2) / np.mean(np.square(other))) * 10 ** (-db / 20)).astype("f4")


def clipped(x: Samples, share: float) -> Samples:
    """Cut at so much of the peak, and made as loud as before."""
    most = share * np.abs(x).max()
    return np.clip(x, -most, most) / share


def mu_law(x: Samples, bits: int) -> Samples:
    mu = 2**bits - 1
    y = np.sign(x) * np.log1p(mu * np.abs(x)) / np.log1p(mu)
    y = 2 * np.round((y + 1) / 2 * mu) / mu - 1
    return (np.sign(y) * np.expm1(np.abs(y) * np.log1p(mu)) / mu).astype("f4")


def telephone(x: Samples, bits: int) -> Samples:
    """Mu-law of 8,000 samples per second; 8 bits are G.711."""
    return soxr.resample(mu_law(soxr.resample(x, RATE, RATE // 2), bits), RATE // 2, RATE)


def drop_outs(x: Samples, every_ms: int) -> Samples:
    """20 ms of nothing, every so many milliseconds."""
    at = np.arange(len(x)) % (RATE * every_ms // 1000)
    return np.where(at >= RATE * (every_ms - 20) // 1000, 0, x).astype("f4")


def speed(x: Samples, factor: float) -> Samples:
    """As a tape that runs faster: the pitch too."""
    return soxr.resample(x, round(RATE * factor), RATE)


def silence(x: Samples, share: float) -> Samples:
    """A pause in the middle that makes up so much of the clip."""
    pause = np.zeros(int(len(x) * share / (1 - share)), "f4")
    return np.concatenate([x[: len(x) // 2], pause, x[len(x) // 2 :]])


def tones(count: int, *hz: float) -> Samples:
    time = np.arange(count) / RATE
    return (0.2 / len(hz) * sum(np.sin(2 * np.pi * f * time) for f in hz)).astype("f4")


def with_tone(x: Samples, db: float) -> Samples:
    return add(x, tones(len(x), 220.0), db)


Damage = Callable[[Samples], Samples]
RUNGS: Mapping[str, tuple[Callable[..., Samples], tuple[float, ...]]] = {
    "band limit, Hz": (band_limit, (6000, 4000, 2500, 1500)),
    "white noise, dB": (noise, (40, 30, 20, 10, 0)),
    "low noise, dB": (partial(noise, pole=0.95), (30, 20, 10, 0)),
    "clipped at": (clipped, (0.5, 0.25, 0.1, 0.04)),
    "mu-law, bits": (mu_law, (8, 6, 5, 4)),
    "telephone, bits": (telephone, (8, 6, 4)),
    "drop-outs, every ms": (drop_outs, (400, 200, 100, 50)),
    "faster": (speed, (1.25, 1.6, 2.2)),
    "slower": (speed, (0.8, 0.6, 0.4)),
    "silence, share": (silence, (0.3, 0.5, 0.7)),
    "tone of 220 Hz, dB": (with_tone, (20, 10, 0, -10)),
}


def not_speech(count: int) -> dict[str, Samples]:
    """Sounds of so many samples."""
    time, rng = np.arange(count) / RATE, np.random.default_rng(0)
    white, sine = (0.1 * rng.standard_normal(count)).astype("f4"), tones(count, 220.0)
    return {
        "sine of 220 Hz": sine,
        "sine of 1 kHz": tones(count, 1000.0),
        "chord": tones(count, 220.0, 277.0, 330.0),
        "buzz": tones(count, *(150.0 * k for k in range(1, 13))),
        "sine, four times a second": (sine * np.sin(np.pi * 4 * time) ** 2).astype("f4"),
        "gliding sine": (0.2 * np.sin(2 * np.pi * (100 * time + 300 * time**2))).astype("f4"),
        "white noise": white,
        "noise, four times a second": (white * np.sin(np.pi * 4 * time) ** 2).astype("f4"),
    }
