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


def test_a_bootstrap_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(60):
        interval = st.mean_interval(rng.beta(2, 3, 80))
        inside += interval.low <= 0.4 <= interval.high
    assert 52 <= inside <= 60
    same = st.paired_difference([0.2, 0.4, 1.0], [0.2, 0.4, 1.0])
    assert same == (0.0, 0.0, 0.0)


def test_too_few_samples_are_refused() -> None:
    for call in (
        lambda: st.pass_at_k(3, 1, 4),
        lambda: st.best_at_k([1.0], [0.0], 2),
        lambda: st.majority_at_k([1.0], ["1"], 2),
    ):
        with pytest.raises(ValueError, match="needs at least"):
            call()
