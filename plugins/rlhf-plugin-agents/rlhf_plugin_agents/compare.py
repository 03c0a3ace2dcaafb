"""Two agents on the same tasks: is one better, or is it chance?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_eval.statistics import mcnemar, paired_difference

Row = Mapping[str, Any]
DRAWS = 5000
"""Resamples of the bootstrap."""


def compare(first: Sequence[Row], second: Sequence[Row]) -> dict[str, Any]:
    """Difference (second minus first) over the tasks that both have a verdict on.

    Returns:
        The mean difference of right answers with the interval of :func:`paired_difference` and with a bootstrap over
        tasks (percentiles of 5000 resamples, seed 0); McNemar's exact test on the first trials; Wilcoxon's
        signed-rank test on the values of tasks, None where no task differs.
    """
    a, b = _by_task(first), _by_task(second)
    shared = [t for t in a if t in b]
    result: dict[str, Any] = {
        "tasks": len(shared),
        "only_first": len(a) - len(shared),
        "only_second": len(b) - len(shared),
    }
    if not shared:
        return result
    right = [np.array([np.mean([bool(r["right"]) for r in g[t]]) for t in shared]) for g in (a, b)]
    value = [np.array([np.mean([r["value"] for r in g[t]]) for t in shared]) for g in (a, b)]
    trials = [{t: next((bool(r["right"]) for r in g[t] if r["trial"] == 0), None) for t in shared} for g in (a, b)]
    pairs = [(x, y) for t in shared if (x := trials[0][t]) is not None and (y := trials[1][t]) is not None]
    lost, gained = sum(x and not y for x, y in pairs), sum(y and not x for x, y in pairs)
    return {
        **result,
        "difference": paired_difference(list(right[0]), list(right[1]))._asdict(),
        "bootstrap": bootstrap(right[1] - right[0]),
        "mcnemar": {"lost": lost, "gained": gained, "p": mcnemar(lost, gained)},
        "wilcoxon_p": wilcoxon(value[1] - value[0]),
    }


def bootstrap(difference_P: np.ndarray[Any, Any], draws: int = DRAWS) -> dict[str, float]:
    """95 % percentile interval of the mean over tasks, by resampling tasks (Efron 1979)."""
    rng = np.random.default_rng(0)
    means = difference_P[rng.integers(0, len(difference_P), (draws, len(difference_P)))].mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return {"low": float(low), "high": float(high)}


def wilcoxon(difference_P: np.ndarray[Any, Any]) -> float | None:
    """Two-sided p-value of Wilcoxon's signed-rank test (1945); tasks without a difference are left out."""
    from scipy import stats

    changed = difference_P[np.abs(difference_P) > 1e-12]
    result: Any = stats.wilcoxon(changed) if len(changed) else None
    return None if result is None else float(result.pvalue)


def _by_task(rows: Sequence[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row["value"] is not None:
            groups.setdefault(row["task"], []).append(row)
    return groups
