"""Statistics of scores that every estimator shares. A missing score takes no part in any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from rlhf_core.losses import rounding
from rlhf_core.rewards import Score

Array = npt.NDArray[np.float64]
"""``_G`` completions of one prompt, ``_N`` scored completions of the batch."""

RELATIVE_FLOOR = rounding(1.0)
"""A standard deviation below this share of the largest score is rounding, by default."""


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


def one_each(count: int, value_of: Mapping[int, float]) -> list[float | None]:
    """One value per completion of the batch, None where there is none."""
    return [float(value_of[i]) if i in value_of else None for i in range(count)]


def spread(values_N: Array, relative_floor: float = RELATIVE_FLOOR, least: float = 0.0) -> float:
    """Standard deviation (n - 1), and 0 where it is not one: fewer than two values, or nothing but rounding.

    Args:
        values_N: any number of them, float64.
        relative_floor: a std up to this share of the largest value's size is rounding. Scores are often float32, whose
            residue divided by itself would be an advantage of full size, and by a tiny epsilon one of thousands.
        least: as is a std up to this, where the values are differences of larger numbers (see :func:`rounding`).
    """
    if len(values_N) < 2:
        return 0.0
    std = float(values_N.std(ddof=1))
    return std if std > max(least, relative_floor * float(np.abs(values_N).max())) else 0.0


def centred(values_N: Array, relative_floor: float = RELATIVE_FLOOR, baseline: float | None = None) -> Array:
    """Values less a baseline (their mean by default); exact zeros where they are constant (see :func:`spread`)."""
    if spread(values_N, relative_floor) == 0.0:
        return np.zeros_like(values_N)
    return values_N - (values_N.mean() if baseline is None else baseline)


def group_normalize(rewards_G: Array, *, by_std: bool, epsilon: float = 1e-6, relative_floor: float = 0.0) -> Array:
    r""":math:`(r_i - \bar r) / (\mathrm{std}(r) + \epsilon)` (Shao et al. 2024, section 4.1).

    The standard deviation is the sample's (n - 1), as in the reference implementations.

    Args:
        rewards_G: of one group, float64.
        by_std: False only subtracts the mean (Liu et al. 2025, Dr. GRPO).
        epsilon: added to the standard deviation.
        relative_floor: see :func:`spread`; a constant group gets zeros.

    Returns:
        Float64, ``[G]``; zeros for fewer than two rewards.
    """
    centred_G, std = centred(rewards_G, relative_floor), spread(rewards_G, relative_floor)
    return centred_G / (std + epsilon) if by_std and std else centred_G
