"""How well scores tell right from wrong, with an interval over groups of rows that belong together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def auc(right: Sequence[float] | Array, wrong: Sequence[float] | Array) -> float:
    """Chance that a right row scores above a wrong one, ties half (Mann and Whitney 1947).

    Example:
        >>> auc([2, 1], [0, 1])
        0.875
    """
    low = np.sort(np.asarray(wrong, float))
    below, upto = (np.searchsorted(low, np.asarray(right, float), side) for side in ("left", "right"))
    return float((below + upto).mean() / (2 * len(low)))


def auc_interval(
    scores: Sequence[float], labels: Sequence[bool], groups: Sequence[str], draws: int = 2000, seed: int = 0
) -> dict[str, float]:
    """AUC of scores with a 95 % percentile interval; whole groups are drawn, so that rows of a dialogue stay together.

    Args:
        scores: one a row.
        labels: right or not; both occur.
        groups: which rows belong together.
        draws: resamples; those of one class alone are left out.
        seed: of the draws.

    Returns:
        ``auc``, ``low``, ``high``, and how many rows, wrong rows and groups there are.
    """
    values, truth = np.asarray(scores, float), np.asarray(labels, bool)
    if not 0 < truth.sum() < len(truth):
        raise SystemExit("the held-out rows are all right or all wrong: take more rows (--limit)")
    _, group_of = np.unique(np.asarray(groups), return_inverse=True)
    members = [np.flatnonzero(group_of == g) for g in range(int(group_of.max()) + 1)]
    rng, found = np.random.default_rng(seed), list[float]()
    for _ in range(draws):
        rows = np.concatenate([members[g] for g in rng.integers(len(members), size=len(members))])
        if 0 < truth[rows].sum() < len(rows):
            found.append(auc(values[rows][truth[rows]], values[rows][~truth[rows]]))
    low, high = np.quantile(found, (0.025, 0.975))
    counts = {"rows": len(values), "wrong": int((~truth).sum()), "groups": len(members)}
    return {"auc": auc(values[truth], values[~truth]), "low": float(low), "high": float(high), **counts}
