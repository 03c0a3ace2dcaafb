"""A sequential test for a rise of a noisy series' mean, with a stated probability of a false alarm over a whole run.

The newest window of 4, 8, 16, ... readings is compared with every earlier window of that length and of four times it.
The largest of many noisy means lies above the true one, and more looks find more: so the probability of a false alarm
is divided over all pairs of windows that will ever be compared (a union bound, alpha spending), however long the run.
The noise is measured from differences of neighbours, which a slow trend does not inflate (von Neumann 1941).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
SHORTEST = 4
"""Readings of the shortest window: means of fewer are far from normal where readings are mostly zero."""
DESIGN = 1.5
"""Times the known standard error that readings may scatter where the scores behind them resemble each other, and still
few readings are trusted as if their noise were known."""
EARLIER = (1, 4)
"""Lengths of the earlier windows, times that of the newest: equal, and longer where the mean stood still before."""
RECENT = 5
"""Readings in which a jump is seen; those before them say what was usual."""
NEWEST = (2, 4)
"""Readings whose mean is the new level."""
LONGEST = 16
"""Readings that say what was usual, at most."""
USUAL, PRIOR = 0.05, 5.0
"""Noise of a logarithm that is assumed, and the readings that it counts for."""
BLOCK = 4
"""Readings whose means also measure the noise, so that neighbours that resemble each other do not hide it."""


@dataclass(frozen=True)
class Shift:
    """Two windows; ``early`` lies wholly before ``late``, which is the newest of its length."""

    early: slice
    late: slice
    z: float
    """Mean of ``late`` less mean of ``early``, in standard errors."""
    significant: bool
    """Beyond what chance explains with the probability that was asked for."""


def rises(values: Sequence[float] | Floats, alpha: float, skipped: int = 0, known_noise: float = 0.0) -> list[Shift]:
    """The largest rise of the mean up to now, for each length of window that fits twice, shortest first. ``values`` are
    readings without the run's first ``skipped``; ``alpha`` is the false-alarm probability of a run; ``known_noise`` the
    standard error of one reading, 0 where unknown."""
    values_N = np.asarray(values, np.float64)
    count, shifts, window, level = len(values_N), list[Shift](), SHORTEST, 1
    if count < 2 * window:
        return shifts
    measured, freedom = noise_of(values_N), (count - 1) * 2 / 3
    noise = max(measured, known_noise, 1e-12)
    sums_N = np.concatenate(([0.0], np.cumsum(values_N)))
    while 2 * window <= count:
        end = count // (window // 2) * (window // 2)
        late = slice(end - window, end)
        pairs = (late.start - window + skipped) // (window // 2) + 1
        share = alpha / (level * (level + 1)) / len(EARLIER) / (pairs * pairs * (pairs + 1))
        needed = noise * student_limit(share, freedom)
        if 0 < measured <= DESIGN * known_noise:
            needed = min(needed, DESIGN * known_noise * normal_limit(share))
        mean = float(sums_N[late.stop] - sums_N[late.start]) / window
        rise, early = max(_largest(sums_N, mean, late, window * times) for times in EARLIER)
        shifts.append(Shift(slice(*early), late, rise / noise, rise >= needed))
        window, level = 2 * window, level + 1
    return shifts


def jumps(values: Sequence[float] | Floats, alpha: float, skipped: int = 0) -> list[Shift]:
    """Rises of the newest readings over those before the last :data:`RECENT`, for logarithms of what can double at once
    and :func:`rises` sees too late, for it has to learn the noise first. Here that is taken to be :data:`USUAL`
    until the earlier readings say otherwise (a moderated t-test, Smyth 2004)."""
    values_N = np.asarray(values, np.float64)
    early = slice(max(0, len(values_N) - RECENT - LONGEST), len(values_N) - RECENT)
    count = early.stop - early.start
    if count < SHORTEST:
        return []
    freedom = (count - 1) * 2 / 3
    spread = max(noise_of(values_N[early]), float(values_N[early].std(ddof=1)))
    noise = DESIGN * math.sqrt((PRIOR * USUAL**2 + freedom * spread**2) / (PRIOR + freedom))
    looks = len(values_N) + skipped - RECENT
    limit = student_limit(alpha / len(NEWEST) / (looks * (looks + 1)), PRIOR + freedom)
    shifts: list[Shift] = []
    for window in NEWEST:
        late = slice(len(values_N) - window, len(values_N))
        rise = float(values_N[late].mean() - values_N[early].mean()) / math.sqrt(1 / window + 1 / count)
        shifts.append(Shift(early, late, rise / noise, rise >= noise * limit))
    return shifts


def _largest(sums_N: Floats, mean: float, late: slice, length: int) -> tuple[float, tuple[int, int]]:
    """(Rise to ``mean`` from the lowest earlier window, over ``sqrt(1 / n + 1 / length)``; that window)."""
    last, stride = late.start - length, length // 2
    if last < 0:
        return -math.inf, (0, 0)
    totals = sums_N[length : last + length + 1 : stride] - sums_N[: last + 1 : stride]
    lowest = int(totals.argmin())
    scale = math.sqrt(1 / (late.stop - late.start) + 1 / length)
    return (mean - float(totals[lowest]) / length) / scale, (lowest * stride, lowest * stride + length)


def noise_of(values_N: Floats) -> float:
    """Standard deviation of single readings around a slowly moving mean."""
    steps = values_N[1:] - values_N[:-1]
    variance = float(steps @ steps) / len(steps) / 2
    if len(values_N) >= 4 * BLOCK:
        blocks = values_N[: len(values_N) // BLOCK * BLOCK].reshape(-1, BLOCK).sum(axis=1)
        steps = blocks[1:] - blocks[:-1]
        variance = max(variance, float(steps @ steps) / len(steps) / BLOCK / 2)
    return math.sqrt(variance)


@lru_cache(maxsize=65536)
def normal_limit(alpha: float) -> float:
    """What a standard normal number exceeds with probability ``alpha``."""
    return -NormalDist().inv_cdf(alpha)


@lru_cache(maxsize=65536)
def student_limit(alpha: float, freedom: float) -> float:
    """What Student's t exceeds with probability ``alpha`` (approximation of Wallace 1959, inverted)."""
    z = normal_limit(alpha) * (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(min(z * z / freedom, 500.0)))
