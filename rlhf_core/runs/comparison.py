"""How often one policy beats another, prompt by prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlhf_core.runs.shares import wilson


class WinRate(NamedTuple):
    """Share of wins with ties as half, and its 95 % interval."""

    rate: float
    low: float
    high: float
    n: int


def win_rate(after: Sequence[float], before: Sequence[float], tolerance: float = 1e-9) -> WinRate:
    """How often ``after`` beats ``before`` prompt by prompt (Wilson score interval, 95 %).

    Raises:
        ValueError: lengths differ or are 0.
    """
    if len(after) != len(before) or not after:
        raise ValueError(f"win_rate needs two equally long, non-empty lists, got {len(after)} and {len(before)}")
    points = sum(1.0 if a > b + tolerance else 0.5 if abs(a - b) <= tolerance else 0.0 for a, b in zip(after, before))
    n, rate = len(after), points / len(after)
    return WinRate(rate, *wilson(rate, n), n)
