"""Estimates from several samples of each prompt, and their uncertainty. Plain numpy.

Suffixes: ``_N`` samples of one prompt, ``_P`` prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rlhf_core.runs import wilson

Floats = npt.NDArray[np.float64]
PRIOR_PROMPTS = 0.1
"""Weight of what is known beforehand about the spread of prompts; see :func:`mean_interval`."""
VOTE_DRAWS = 2000
"""Subsets for majority voting: all of them if there are no more, otherwise so many drawn ones."""


class Interval(NamedTuple):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


def pass_at_k(samples: int, right: int, k: int) -> float:
    r"""Chance that at least one of ``k`` samples is right, unbiased: :math:`1 - \binom{n-c}{k} / \binom{n}{k}`.

    Chen et al. 2021 (arXiv:2107.03374), equation 1; the naive :math:`1 - (1 - c/n)^k` is too low.

    Example:
        >>> pass_at_k(4, 1, 2)
        0.5
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs at least {max(k, 1)} samples, there are {samples}")
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def best_at_k(right_N: Sequence[float], rank_by_N: Sequence[float], k: int) -> float:
    r"""How often the sample with the highest score among ``k`` is right, over all subsets of size ``k``, exactly.

    In order of falling score, sample ``i`` (from 0) is the best of :math:`\binom{n-1-i}{k-1}` subsets. Samples of equal
    score share their place, as if ties were broken at random. ``best_at_k(..., 1)`` is the mean.

    Args:
        right_N: 1.0 where the sample is right.
        rank_by_N: the score to choose by; NaN (no score) comes last.
        k: how many samples there are to choose from.
    """
    n = len(right_N)
    if not 1 <= k <= n:
        raise ValueError(f"best@{k} needs at least {max(k, 1)} samples, there are {n}")
    score_N = np.nan_to_num(np.asarray(rank_by_N, float), nan=-np.inf)
    right = np.asarray(right_N, float)
    shared = {s: float(right[score_N == s].mean()) for s in np.unique(score_N)}
    ordered = sorted(score_N, reverse=True)
    chosen = sum(math.comb(n - 1 - i, k - 1) * shared[s] for i, s in enumerate(ordered))
    return chosen / math.comb(n, k)


def majority_at_k(right_N: Sequence[float], answers_N: Sequence[str | None], k: int) -> float:
    """How often the commonest answer of ``k`` samples is right (self-consistency, Wang et al. 2022, arXiv:2203.11171).

    The mean over all subsets of size ``k``, or over 2000 drawn with a fixed seed if there are more. A sample without an
    answer does not vote; answers with equally many votes share; without any vote the prompt counts as wrong.

    Args:
        right_N: 1.0 where the sample is right.
        answers_N: what each states, None where nothing.
        k: how many vote.
    """
    n = len(right_N)
    if not 1 <= k <= n:
        raise ValueError(f"majority@{k} needs at least {max(k, 1)} samples, there are {n}")
    names = sorted({a for a in answers_N if a is not None})
    if not names:
        return 0.0
    votes_NA = np.array([[a == name for name in names] for a in answers_N], float)
    right_A = (votes_NA * np.asarray(right_N, float)[:, None]).sum(0) / votes_NA.sum(0)
    if math.comb(n, k) <= VOTE_DRAWS:
        subsets = np.array(list(combinations(range(n), k)))
    else:
        subsets = np.random.default_rng(0).permuted(np.tile(np.arange(n), (VOTE_DRAWS, 1)), axis=1)[:, :k]
    return _winner(votes_NA[subsets].sum(1), right_A)


def _winner(counts_SA: Floats, right_A: Floats) -> float:
    """Mean over rows of how right the answers with most votes are."""
    top_SA = (counts_SA == counts_SA.max(1, keepdims=True)) & (counts_SA > 0)
    winners_S = top_SA.sum(1)
    return float(np.where(winners_S > 0, (top_SA * right_A).sum(1) / np.maximum(winners_S, 1), 0.0).mean())


def mean_interval(values_P: Sequence[float]) -> Interval:
    """Mean over prompts with a 95 % interval that holds also with few prompts: Wilson's if every value is 0 or 1;
    Wilson's with the effective number of prompts and Student's quantile for other shares (Korn and Graubard 1998,
    Survey Methodology 24, 193); Student's for values beyond [0, 1]."""
    values = np.asarray(values_P, float)
    if len(values) == 0:
        return Interval(math.nan, math.nan, math.nan)
    mean = float(values.mean())
    if np.isin(values, (0.0, 1.0)).all():
        return Interval(mean, *wilson(mean, len(values)))
    if values.min() < 0 or values.max() > 1:
        return Interval(mean, *_student(values))
    return Interval(mean, *_score_interval(values))


def _student(values: Floats) -> tuple[float, float]:
    """Student's interval of a mean; infinite for a single value."""
    count = len(values)
    if count < 2:
        return -math.inf, math.inf
    half = t_quantile(count - 1) * float(values.std(ddof=1)) / math.sqrt(count)
    return float(values.mean()) - half, float(values.mean()) + half


def _score_interval(values: Floats) -> tuple[float, float]:
    """Wilson's interval of the mean of values in [0, 1], counted as as many right-or-wrong cases as have the same
    standard error. A tenth of a right-or-wrong prompt is added to the variance, which a few prompts show too little of
    (coverage 0.92 without it, at 8 prompts of which most fail)."""
    count, mean = len(values), float(values.mean())
    if count < 2 or np.ptp(values) < 1e-9:
        return wilson(mean, count, t_quantile(count - 1)) if count > 1 else (0.0, 1.0)
    middle = (float(values.sum()) + 0.5) / (count + 1)
    squares = float(((values - mean) ** 2).sum()) + PRIOR_PROMPTS * middle * (1 - middle)
    variance = squares / (count - 1 + PRIOR_PROMPTS)
    return wilson(mean, mean * (1 - mean) * count / variance, t_quantile(count - 1))


def paired_difference(first_P: Sequence[float], second_P: Sequence[float]) -> Interval:
    """Mean of ``second - first`` over the same prompts, with an interval that covers it also with few prompts.

    Where every prompt was lost, kept or gained as a whole: Bonett and Price 2012 (J. Educ. Behav. Stat. 37, 479),
    which adds one prompt that was lost and one that was gained. Otherwise as in :func:`mean_interval`, the differences
    moved from [-1, 1] to [0, 1]."""
    if len(first_P) != len(second_P) or not len(first_P):
        raise ValueError(f"{len(first_P)} and {len(second_P)} values cannot be paired")
    gain_P = np.asarray(second_P, float) - np.asarray(first_P, float)
    mean = float(gain_P.mean())
    if np.abs(gain_P).max() > 1:
        return Interval(mean, *_student(gain_P))
    if np.isin(gain_P, (-1.0, 0.0, 1.0)).all():
        count = len(gain_P) + 2
        centre = float(gain_P.sum()) / count
        half = 1.959964 * math.sqrt((float((gain_P**2).sum()) + 2) / count - centre**2) / math.sqrt(count)
        return Interval(mean, max(-1.0, min(mean, centre - half)), min(1.0, max(mean, centre + half)))
    low, high = _score_interval((gain_P + 1) / 2)
    return Interval(mean, 2 * low - 1, 2 * high - 1)


def mcnemar(lost: int, gained: int) -> float:
    """Two-sided p-value that as many prompts are lost as gained (McNemar 1947), by the exact binomial test.

    Example:
        >>> round(mcnemar(1, 9), 4)
        0.0215
    """
    n, least = lost + gained, min(lost, gained)
    if n == 0:
        return 1.0
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(least + 1)) / 2**n)


_FEW = (12.7062, 4.30265, 3.18245)


def t_quantile(degrees: int) -> float:
    """97.5 % quantile of Student's t: how many standard errors a 95 % interval of a mean reaches to each side.

    Cornish and Fisher's expansion (Abramowitz and Stegun 26.7.5), within 0.001; infinite without a degree of freedom.

    Example:
        >>> round(t_quantile(7), 2)
        2.36
    """
    if degrees < 1:
        return math.inf
    if degrees <= len(_FEW):
        return _FEW[degrees - 1]
    z = 1.959964
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / degrees**i for i, term in enumerate(terms, 1))


def percentile_tails(count: int) -> tuple[float, float]:
    """Quantiles of a percentile bootstrap over ``count`` cases that make its interval as wide as Student's.

    The plain 2.5 % and 97.5 % are too narrow for few cases (85 % coverage at 8), because a bootstrap sample varies less
    than the cases do (Hesterberg 2015, Am. Stat. 69, 371, "expanded percentile interval").

    Example:
        >>> [round(tail, 4) for tail in percentile_tails(8)]
        [0.0057, 0.9943]
    """
    if count < 2:
        return 0.0, 1.0
    tail = 0.5 * math.erfc(t_quantile(count - 1) * math.sqrt(count / (count - 1)) / math.sqrt(2))
    return tail, 1 - tail


def ranks(values_N: Floats) -> Floats:
    """Ranks from 1, ``[N]``; equal values share their mean rank.

    Example:
        >>> ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist()
        [3.5, 1.0, 3.5, 2.0]
    """
    _, index_N, counts = np.unique(values_N, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[index_N]


def spearman(x_N: Floats, y_N: Floats) -> float:
    """Correlation of the ranks, in [-1, 1] (Spearman 1904, Am. J. Psychol. 15, 72); ties share their mean rank.

    Args:
        x_N: one score of each of N things.
        y_N: the other, in the same order.

    Returns:
        NaN where one of them does not vary.

    Example:
        >>> round(spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])), 6)
        0.5
    """
    if len(x_N) < 2 or np.ptp(x_N) == 0 or np.ptp(y_N) == 0:
        return math.nan
    return float(np.corrcoef(ranks(x_N), ranks(y_N))[0, 1])
