"""Estimates against brute force, and intervals against what they promise."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from rlhf_eval import statistics as st

RIGHT = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0]
SCORES = [0.3, 0.9, 0.3, 0.3, math.nan, -1.0, 0.9]


@pytest.mark.parametrize("k", [1, 2, 3, 5, 7])
def test_pass_at_k_is_the_mean_over_all_subsets(k: int) -> None:
    brute = np.mean([max(RIGHT[i] for i in c) for c in combinations(range(7), k)])
    assert st.pass_at_k(7, 3, k) == pytest.approx(brute)


@pytest.mark.parametrize("k", [1, 2, 4, 7])
def test_best_at_k_is_the_mean_over_all_subsets_with_ties_shared(k: int) -> None:
    clean = [-math.inf if math.isnan(s) else s for s in SCORES]

    def chosen(rows: tuple[int, ...]) -> float:
        top = max(clean[i] for i in rows)
        return float(np.mean([RIGHT[i] for i in rows if clean[i] == top]))

    brute = np.mean([chosen(c) for c in combinations(range(7), k)])
    assert st.best_at_k(RIGHT, SCORES, k) == pytest.approx(brute)


def test_best_at_one_is_pass_at_one_and_an_oracle_reaches_pass_at_k() -> None:
    assert st.best_at_k(RIGHT, SCORES, 1) == pytest.approx(st.pass_at_k(7, 3, 1))
    assert st.best_at_k(RIGHT, RIGHT, 4) == pytest.approx(st.pass_at_k(7, 3, 4))


def test_majority_vote() -> None:
    answers = ["18", "20", None, "18", "20", "21", "18"]
    right = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    assert st.majority_at_k(right, answers, 7) == 1.0
    assert st.majority_at_k(right[:2], answers[:2], 2) == 0.5  # one vote each
    assert st.majority_at_k(right, [None] * 7, 7) == 0.0
    assert st.majority_at_k([1.0, 0.0, 1.0], ["18", "20", "18"], 2) == pytest.approx(2 / 3)


def test_mcnemar_is_the_exact_binomial_test() -> None:
    for lost, gained in ((1, 9), (0, 0), (4, 4), (30, 11)):
        scipy_p = stats.binomtest(lost, lost + gained).pvalue if lost + gained else 1.0
        assert st.mcnemar(lost, gained) == pytest.approx(min(1.0, scipy_p))


POPULATIONS = {
    "even": lambda rng, size: rng.beta(2, 3, size),
    "easy or hard": lambda rng, size: rng.binomial(16, rng.beta(0.5, 0.5, size)) / 16,
    "mostly wrong": lambda rng, size: rng.binomial(16, rng.beta(0.3, 1.2, size)) / 16,
    "right or wrong": lambda rng, size: (rng.random(size) < 0.3).astype(float),
}
MEANS = {"even": 0.4, "easy or hard": 0.5, "mostly wrong": 0.2, "right or wrong": 0.3}


@pytest.mark.parametrize("prompts", [8, 30])
@pytest.mark.parametrize("population", POPULATIONS)
def test_the_interval_of_a_mean_covers_it_95_times_in_100(population: str, prompts: int) -> None:
    values_RP = POPULATIONS[population](np.random.default_rng(1), (2500, prompts))
    intervals = [st.mean_interval(row) for row in values_RP]
    covered = np.mean([i.low <= MEANS[population] <= i.high for i in intervals])
    assert 0.93 <= covered <= 0.97
    assert all(0 <= i.low <= i.value <= i.high <= 1 for i in intervals)


@pytest.mark.parametrize("prompts", [8, 30])
@pytest.mark.parametrize("samples", [1, 4])
def test_the_interval_of_a_paired_difference_covers_it(samples: int, prompts: int) -> None:
    rng = np.random.default_rng(2)
    rates = rng.beta(2, 3, (2500, prompts))
    first, second = (rng.binomial(samples, r) / samples for r in (rates, rates + 0.1 * (1 - rates)))
    intervals = [st.paired_difference(a, b) for a, b in zip(first, second)]
    covered = np.mean([i.low <= 0.06 <= i.high for i in intervals])
    assert 0.93 <= covered <= (0.97 if samples > 1 else 0.985)  # three values at one sample: coarse, on the safe side


def test_values_that_are_all_the_same_leave_doubt() -> None:
    """Eight prompts cannot show that there is no ninth that differs."""
    assert st.mean_interval([0.0] * 8) == pytest.approx((0, 0, 0.324), abs=1e-3)
    low, high = st.mean_interval([0.5] * 8)[1:]
    assert low < 0.3 < 0.7 < high
    same = st.paired_difference([0.2, 0.4, 1.0], [0.2, 0.4, 1.0])
    assert same.value == 0
    assert same.high == -same.low > 0.3
    assert st.paired_difference([0.0] * 400, [0.0] * 400).high < 0.01


def test_rewards_beyond_shares_have_students_interval() -> None:
    values = [-3.0, 5.5, 2.0, 7.0, 1.0]
    t = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    assert st.mean_interval(values)[1:] == pytest.approx(t, rel=1e-3)


def test_too_few_samples_are_refused() -> None:
    for call in (
        lambda: st.pass_at_k(3, 1, 4),
        lambda: st.best_at_k([1.0], [0.0], 2),
        lambda: st.majority_at_k([1.0], ["1"], 2),
    ):
        with pytest.raises(ValueError, match="needs at least"):
            call()


def test_spearman_averages_ties_and_is_nan_where_nothing_varies() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 5, 60).astype(float), rng.integers(0, 7, 60).astype(float)
    mean_ranks = [[sum(y < x for y in v) + (sum(y == x for y in v) + 1) / 2 for x in v] for v in (a, b)]
    assert st.ranks(a).tolist() == mean_ranks[0]
    assert st.spearman(a, b) == pytest.approx(np.corrcoef(*mean_ranks)[0, 1], abs=1e-12)
    assert st.spearman(a, a**3) == pytest.approx(1)
    assert st.spearman(a, -a) == pytest.approx(-1)
    assert math.isnan(st.spearman(a, np.ones(60)))
    assert math.isnan(st.spearman(a[:1], b[:1]))


def test_t_quantiles_and_the_tails_that_make_a_bootstrap_as_wide() -> None:
    tabled = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 7: 2.3646, 30: 2.0423, 1000: 1.9623}
    for degrees, quantile in tabled.items():
        assert st.t_quantile(degrees) == pytest.approx(quantile, rel=1e-3)
    for count in (8, 20, 50):
        low, high = st.percentile_tails(count)
        values = np.random.default_rng(count).normal(size=count)
        means = values[np.random.default_rng(1).integers(0, count, (40_000, count))].mean(1)
        half = np.diff(np.quantile(means, (low, high)))[0] / 2
        assert half == pytest.approx(st.t_quantile(count - 1) * values.std(ddof=1) / math.sqrt(count), rel=0.06)
    assert st.percentile_tails(1) == (0.0, 1.0)
