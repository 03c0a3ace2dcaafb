"""The codebook of spectra: k-means of mel-cepstra per 20 ms."""

from __future__ import annotations

import numpy as np


def kmeans(rows: np.ndarray, codes: int, rounds: int = 25, seed: int = 0) -> np.ndarray:
    """Centres ``[codes, width]``; an empty one is moved to a row drawn at random."""
    draw = np.random.default_rng(seed)
    centres = rows[draw.choice(len(rows), codes, replace=False)].astype(np.float64)
    for _ in range(rounds):
        nearest = ((centres**2).sum(1) - 2 * rows @ centres.T).argmin(1)
        counts = np.bincount(nearest, minlength=codes)
        sums = np.stack([np.bincount(nearest, column, codes) for column in rows.T], 1)
        centres = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centres)
        empty = np.flatnonzero(counts == 0)
        centres[empty] = rows[draw.choice(len(rows), len(empty), replace=False)]
    return centres


def neighbours(centres: np.ndarray, count: int = 8) -> np.ndarray:
    """The nearest other codes of every code, ``[codes, count]``."""
    distance = ((centres[:, None] - centres[None]) ** 2).sum(-1)
    return distance.argsort(1)[:, 1 : count + 1]
