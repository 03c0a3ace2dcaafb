"""Intervals of shares and rank correlation by their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlhf_core.runs import percentile_tails, spearman, t_quantile, wilson
from rlhf_core.runs.metrics import ranks


def test_wilsons_ends_are_as_far_from_the_share_as_chance_puts_it() -> None:
    for right, count, z in ((0, 20, 1.959964), (7, 50, 1.959964), (3.5, 50, 1.0), (50, 50, 2.6), (1, 3, 1.959964)):
        share = right / count
        low, high = wilson(share, count, z)
        assert low <= share <= high
        for end in (low, high):
            assert abs(share - end) == pytest.approx(z * math.sqrt(end * (1 - end) / count), abs=1e-12)
    assert wilson(0.0, 20)[0] == 0.0
    assert wilson(1.0, 20)[1] == 1.0
    assert [round(x, 6) for x in wilson(0.35, 20)] == [0.181192, 0.567146]
    assert all(math.isnan(x) for x in wilson(math.nan, 0))


def test_spearman_averages_ties_and_is_nan_where_nothing_varies() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 5, 60).astype(float), rng.integers(0, 7, 60).astype(float)
    mean_ranks = [[sum(y < x for y in v) + (sum(y == x for y in v) + 1) / 2 for x in v] for v in (a, b)]
    assert ranks(a).tolist() == mean_ranks[0]
    assert spearman(a, b) == pytest.approx(np.corrcoef(*mean_ranks)[0, 1], abs=1e-12)
    assert spearman(a, a**3) == pytest.approx(1)
    assert spearman(a, -a) == pytest.approx(-1)
    assert math.isnan(spearman(a, np.ones(60)))
    assert math.isnan(spearman(a[:1], b[:1]))


def test_t_quantiles_and_the_tails_that_make_a_bootstrap_as_wide() -> None:
    tabled = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 7: 2.3646, 30: 2.0423, 1000: 1.9623}
    for degrees, quantile in tabled.items():
        assert t_quantile(degrees) == pytest.approx(quantile, rel=1e-3)
    for count in (8, 20, 50):
        low, high = percentile_tails(count)
        values = np.random.default_rng(count).normal(size=count)
        means = values[np.random.default_rng(1).integers(0, count, (40_000, count))].mean(1)
        half = np.diff(np.quantile(means, (low, high)))[0] / 2
        assert half == pytest.approx(t_quantile(count - 1) * values.std(ddof=1) / math.sqrt(count), rel=0.06)
    assert percentile_tails(1) == (0.0, 1.0)
