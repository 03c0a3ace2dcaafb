"""Statistics of scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_core.config import UserError

DRAWS = 2000


def auc(high: Any, low: Any) -> float:
    """Probability that one of ``high`` scores above one of ``low``; ties count half (Mann and Whitney 1947)."""
    low = np.sort(low)
    below, upto = (np.searchsorted(low, high, side) for side in ("left", "right"))
    return float((below + upto).mean() / (2 * len(low)))


def auc_interval(scores: Sequence[float], labels: Sequence[bool], groups: Sequence[str]) -> dict[str, float]:
    """AUC of scores with a 95 % percentile interval over groups (the rows of a dialogue)."""
    values, truth = np.asarray(scores, float), np.asarray(labels, bool)
    if not 0 < truth.sum() < len(truth):
        raise UserError("the held-out rows are all right or all wrong", fix="take more rows")
    _, group_of = np.unique(np.asarray(groups), return_inverse=True)
    members = [np.flatnonzero(group_of == g) for g in range(int(group_of.max()) + 1)]
    rng, aucs = np.random.default_rng(0), list[float]()
    for _ in range(DRAWS):
        rows = np.concatenate([members[g] for g in rng.integers(len(members), size=len(members))])
        if 0 < truth[rows].sum() < len(rows):
            aucs.append(auc(values[rows][truth[rows]], values[rows][~truth[rows]]))
    low, high = map(float, np.quantile(aucs, (0.025, 0.975)))
    counts = {"rows": len(values), "wrong": int((~truth).sum()), "groups": len(members)}
    return {"auc": auc(values[truth], values[~truth]), "low": low, "high": high, **counts}
