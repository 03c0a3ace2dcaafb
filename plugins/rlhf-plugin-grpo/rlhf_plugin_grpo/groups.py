"""Statistics of scores that every estimator shares. A missing score takes no part in any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from rlhf_core.rewards import Score

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


def one_each(count: int, value_of: Mapping[int, float]) -> list[float | None]:
    """One value per completion of the batch, None where there is none."""
    return [float(value_of[i]) if i in value_of else None for i in range(count)]
