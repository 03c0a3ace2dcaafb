"""The uncertainty of a share."""

from __future__ import annotations

import math


def wilson(share: float, count: int, z: float = 1.959964) -> tuple[float, float]:
    r"""Score interval of a share: the :math:`p` with :math:`|\hat p - p| \le z \sqrt{p (1 - p) / n}`.

    Sensible also where nothing or everything is right, and for few cases (Wilson 1927, J. Am. Stat. Assoc. 22, 209).

    Args:
        share: in [0, 1]; halves, as of ties, are allowed.
        count: of independent cases.
        z: quantile of the normal distribution; 95 % by default.

    Returns:
        Both ends, in [0, 1]; NaN of no cases.

    Example:
        >>> [round(bound, 3) for bound in wilson(0.5, 100)]
        [0.404, 0.596]
        >>> [round(bound, 3) for bound in wilson(0.0, 20)]
        [0.0, 0.161]
    """
    if count == 0:
        return math.nan, math.nan
    square = z * z / count
    centre = (share + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt((share * (1 - share) + square / 4) / count)
    return 0.0 if share == 0 else max(0.0, centre - half), 1.0 if share == 1 else min(1.0, centre + half)
