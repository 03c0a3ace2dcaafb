"""Statistics of scores that every estimator shares. A missing score takes no part in any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from rlhf_core.api import Score

Array = npt.NDArray[np.float64]
"""``_G`` completions of one prompt, ``_N`` scored completions of the batch."""


def rows_by_group(scores: Sequence[Score], group_ids: Sequence[int]) -> list[list[int]]:
    """Positions of each group's scored completions; groups without any are left out."""
    rows: dict[int, list[int]] = {}
    for i, (score, group) in enumerate(zip(scores, group_ids, strict=True)):
        if score.ok:
            rows.setdefault(group, []).append(i)
    return list(rows.values())


def values(scores: Sequence[Score], rows: Sequence[int]) -> Array:
    """The scores at some positions, float64."""
    return np.array([scores[i].value for i in rows], np.float64)


def spread(rewards_N: Array, floor: float) -> float:
    """Standard deviation (n - 1), and 0 where it is not one: fewer than two values, or nothing but rounding.

    Args:
        rewards_N: any number of them.
        floor: a std up to this share of the largest value's size is rounding. Scores are often float32, whose residue
            divided by itself would be an advantage of full size, and divided by a tiny epsilon one of thousands.
    """
    if len(rewards_N) < 2:
        return 0.0
    std = float(rewards_N.std(ddof=1))
    return std if std > floor * max(1e-8, float(np.abs(rewards_N).max())) else 0.0


def centred(rewards_N: Array, floor: float, baseline: float | None = None) -> Array:
    """Values less a baseline (their mean by default); exact zeros where they are constant (see :func:`spread`)."""
    if spread(rewards_N, floor) == 0.0:
        return np.zeros_like(rewards_N)
    return rewards_N - (rewards_N.mean() if baseline is None else baseline)


def one_each(count: int, found: Mapping[int, float]) -> list[float | None]:
    """One value per completion of the batch, None where there is none."""
    return [float(found[i]) if i in found else None for i in range(count)]
