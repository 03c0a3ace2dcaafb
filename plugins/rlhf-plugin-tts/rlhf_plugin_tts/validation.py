"""Rank correlation of features and reward parts with ratings: pooled, and within speaker, engine or text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlhf_eval.statistics import percentile_tails
from rlhf_eval.statistics import spearman as rank_correlation

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]
DRAWS = 1000
LEAST_CLUSTERS = 5
"""With as many groups the bootstrap draws groups, else clips."""
LEAST_ROWS = 4
"""Clips of a group that a rank correlation needs."""
SPEECH_PARTS = {
    "speech/quality/ovrl": "dnsmos, overall",
    "speech/quality/sig": "dnsmos, speech",
    "speech/quality/bak": "dnsmos, background",
    "speech/quality/p808": "dnsmos, P.808",
    "speech/words/raw": "wer",
}
"""Parts of the reward ``speech`` that tables have rows of, and those rows' names."""


def spearman(x: Floats, y: Floats) -> float:
    """Spearman's rank correlation of the rows in which both are finite; NaN where one is constant."""
    both = np.isfinite(x) & np.isfinite(y)
    if both.sum() < LEAST_ROWS:
        return float("nan")
    return round(rank_correlation(x[both], y[both]), 12)


def within(x: Floats, y: Floats, by_group: Sequence[Rows]) -> float:
    """Mean of the groups' correlations, each weighted by its number of clips; NaN where no group has one."""
    return _weighted([(spearman(x[rows], y[rows]), len(rows)) for rows in by_group])


def _weighted(rhos: Sequence[tuple[float, int]]) -> float:
    finite = [(rho, n) for rho, n in rhos if np.isfinite(rho)]
    return sum(rho * n for rho, n in finite) / sum(n for _, n in finite) if finite else float("nan")


def rows_by_group(groups: Sequence[str]) -> list[Rows]:
    """Rows of each group, groups by name."""
    names = np.array(groups)
    return [np.flatnonzero(names == name) for name in sorted(set(groups))]


def bootstrap(statistic: Callable[[list[Rows]], float], by_group: Sequence[Rows], seed: int) -> tuple[float, float]:
    """95% bootstrap interval of a statistic of groups of rows; draws groups, or clips within few groups. Its tails are
    those of :func:`rlhf_eval.statistics.percentile_tails`, so that few groups do not look like many."""
    rng, few = np.random.default_rng(seed), len(by_group) < LEAST_CLUSTERS
    values = []
    for _ in range(DRAWS):
        if few:
            drawn = [rows[rng.integers(0, len(rows), len(rows))] for rows in by_group]
        else:
            drawn = [by_group[i] for i in rng.integers(0, len(by_group), len(by_group))]
        values.append(statistic(drawn))
    finite = [v for v in values if np.isfinite(v)]
    if len(finite) < DRAWS // 2:
        return float("nan"), float("nan")
    low, high = np.quantile(finite, percentile_tails(sum(map(len, by_group)) if few else len(by_group)))
    return float(low), float(high)


def within_interval(x: Floats, y: Floats, by_group: Sequence[Rows], seed: int) -> tuple[float, float]:
    """The interval of :func:`within`; a group that is drawn whole has its correlation computed once."""
    known = {id(rows): spearman(x[rows], y[rows]) for rows in by_group}

    def of(drawn: list[Rows]) -> float:
        rhos = [(known[id(rows)] if id(rows) in known else spearman(x[rows], y[rows]), len(rows)) for rows in drawn]
        return _weighted(rhos)

    return bootstrap(of, by_group, seed)


def correlations(
    columns: Mapping[str, Floats], reference: Floats, groups: Sequence[str], keep: float, seed: int
) -> dict[str, dict[str, Any]]:
    """Column -> correlations; kept where ``|rho| > keep`` within groups, ``confounded`` where pooled disagrees."""
    by_group = rows_by_group(groups)
    one_group = [np.arange(len(reference))]
    table = {}
    for name, x in columns.items():

        def pooled(drawn: list[Rows], x: Floats = x) -> float:
            rows = np.concatenate(drawn)
            return spearman(x[rows], reference[rows])

        row: dict[str, Any] = {
            "pooled": spearman(x, reference),
            "pooled_interval": bootstrap(pooled, by_group if len(by_group) >= LEAST_CLUSTERS else one_group, seed),
            "missing": int((~np.isfinite(x)).sum()),
        }
        decisive = row["pooled"]
        if len(by_group) > 1:
            row["within"] = decisive = within(x, reference, by_group)
            row["within_interval"] = within_interval(x, reference, by_group, seed)
            row["confounded"] = bool((abs(row["pooled"]) > keep) != (abs(decisive) > keep))
        row["kept"] = bool(abs(decisive) > keep)
        table[name] = row
    return table
