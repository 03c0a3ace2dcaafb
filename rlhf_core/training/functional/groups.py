"""What counts as rounding of a score."""

from __future__ import annotations

RELATIVE_FLOOR = 2.0**-19
"""A standard deviation below this share of the largest score is rounding, by default: 16 roundings of float32 (2^-23
each), in which most scores are computed."""


def rounding(scale: float) -> float:
    """What rounding may leave of float32 arithmetic on numbers up to ``scale``, whose true result is 0."""
    return RELATIVE_FLOOR * scale
