"""Statistics of scores and margins; plain functions on numpy arrays.

Suffixes: ``_N`` pairs or responses, ``_R`` resamples. A *margin* is score(chosen) - score(rejected).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rlhf_core.runs import wilson
from rlhf_eval.statistics import percentile_tails

Floats = npt.NDArray[np.float64]
RESAMPLES = 1000


class Interval(NamedTuple):
    """Ends of a 95 % interval."""

    low: float
    high: float


def bootstrap(
    statistic: Callable[[npt.NDArray[np.intp]], float],
    clusters: Sequence[Hashable],
    seed: int,
    resamples: int = RESAMPLES,
) -> Interval:
    """Percentile bootstrap over clusters (Efron and Tibshirani 1993): rows of one prompt are drawn together.

    Its tails are those of :func:`rlhf_eval.statistics.percentile_tails`, so that few prompts do not look like many."""
    groups = [np.array(rows) for rows in groups_of(clusters).values()]
    alone = len(groups) == len(clusters)
    rng = np.random.default_rng(seed)
    statistics_R: list[float] = []
    for _ in range(resamples):
        drawn = rng.integers(0, len(groups), len(groups))
        statistics_R.append(statistic(drawn if alone else np.concatenate([groups[g] for g in drawn])))
    values = np.array([v for v in statistics_R if math.isfinite(v)])
    if len(values) < resamples / 2:
        return Interval(math.nan, math.nan)
    low, high = np.quantile(values, percentile_tails(len(groups)))
    return Interval(float(low), float(high))


def groups_of(clusters: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    """Key -> its rows."""
    groups: dict[Hashable, list[int]] = {}
    for i, key in enumerate(clusters):
        groups.setdefault(key, []).append(i)
    return groups


def points(margins_N: Floats, tie: float = 0.0) -> Floats:
    """1 where chosen scores higher, 0 where lower, 0.5 where the margin is within ``tie`` of 0."""
    return np.where(np.abs(margins_N) <= tie, 0.5, (margins_N > 0).astype(float))


def sigmoid(x_N: Floats) -> Floats:
    """``1 / (1 + exp(-x))`` without overflow."""
    return np.exp(-np.logaddexp(0, -x_N))


class Bin(NamedTuple):
    """Pairs of similar margin: how sure the reward is, and how often it is right."""

    n: int
    margin: float
    confidence: float
    right: float
    low: float
    high: float

    @property
    def gap(self) -> float:
        """Above 0: overconfident."""
        return self.confidence - self.right


def deciles(margins_N: Floats, tie: float = 0.0, bins: int = 10) -> list[Bin]:
    """Pairs by absolute margin in ten groups of at least five; confidence is the mean ``sigmoid(|margin|)``."""
    bins = max(1, min(bins, len(margins_N) // 5))
    right_N, size_N = points(margins_N, tie), np.abs(margins_N)
    groups: list[Bin] = []
    for rows in np.array_split(np.argsort(size_N, kind="stable"), bins):
        right = float(right_N[rows].mean())
        groups.append(
            Bin(
                len(rows),
                float(size_N[rows].mean()),
                float(sigmoid(size_N[rows]).mean()),
                right,
                *wilson(right, len(rows)),
            )
        )
    return groups


def expected_calibration_error(bins: Sequence[Bin]) -> float:
    """``sum(n |confidence - right|) / sum(n)`` (Naeini et al. 2015; Guo et al. 2017)."""
    return sum(b.n * abs(b.gap) for b in bins) / sum(b.n for b in bins)


def log_loss(margins_N: Floats) -> float:
    """``mean(-log sigmoid(margin))``, nats: the Bradley-Terry loss."""
    return float(np.logaddexp(0, -margins_N).mean())


def best_temperature(margins_N: Floats) -> float:
    """``T`` with the least ``log_loss(margin / T)`` (Guo et al. 2017), between 0.01 and 100 margin spreads."""
    spread = float(np.sqrt((margins_N**2).mean()))
    if spread == 0:
        return 1.0
    low, high = math.log(0.01 * spread), math.log(100 * spread)
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(60):  # the loss is convex in 1/T, so it has one valley in log T
        left, right = high - golden * (high - low), low + golden * (high - low)
        if log_loss(margins_N / math.exp(left)) < log_loss(margins_N / math.exp(right)):
            high = right
        else:
            low = left
    return math.exp((low + high) / 2)


def rescaled(margins_N: Floats) -> Floats:
    """Each half of the pairs divided by the best temperature of the other half, so that nothing is fitted to itself."""
    out_N = margins_N.copy()
    if len(margins_N) < 4:
        return out_N
    for half, other_half in ((slice(0, None, 2), slice(1, None, 2)), (slice(1, None, 2), slice(0, None, 2))):
        out_N[half] = margins_N[half] / best_temperature(margins_N[other_half])
    return out_N


def best_of_n(scores_N: Floats, golds_N: Floats, n: int) -> float:
    """Expected gold score of the highest-scored of ``n`` responses, exactly (Nakano et al. 2021, appendix): that of
    rank i (from 1, lowest first) is it with probability ``C(i - 1, n - 1) / C(N, n)``; equal scores share their golds'
    mean."""
    count = len(scores_N)
    if not 1 <= n <= count:
        raise ValueError(f"best of {n} of {count} responses")
    order = np.argsort(scores_N, kind="stable")
    _, inverse = np.unique(scores_N[order], return_inverse=True)
    shared_N = (np.bincount(inverse, golds_N[order]) / np.bincount(inverse))[inverse]
    subsets = math.comb(count, n)
    weights = [math.comb(i - 1, n - 1) / subsets for i in range(1, count + 1)]
    return float(np.dot(weights, shared_N))


def best_of_n_kl(n: int) -> float:
    """KL of best-of-n from the policy it draws from, nats: ``log n - (n - 1) / n`` (Stiennon et al. 2020)."""
    return math.log(n) - (n - 1) / n
