"""Whether two scores put things into the same order."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def ranks(values_N: Floats) -> Floats:
    """Ranks from 1, ``[N]``; equal values share their mean rank.

    Example:
        >>> ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist()
        [3.5, 1.0, 3.5, 2.0]
    """
    _, place, counts = np.unique(values_N, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[place]


def spearman(x_N: Floats, y_N: Floats) -> float:
    """Correlation of the ranks, in [-1, 1] (Spearman 1904, Am. J. Psychol. 15, 72); ties share their mean rank.

    Args:
        x_N: one score of each of N things.
        y_N: the other, in the same order.

    Returns:
        NaN where one of them does not vary.

    Example:
        >>> round(spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])), 6)
        0.5
    """
    if len(x_N) < 2 or np.ptp(x_N) == 0 or np.ptp(y_N) == 0:
        return math.nan
    return float(np.corrcoef(ranks(x_N), ranks(y_N))[0, 1])
