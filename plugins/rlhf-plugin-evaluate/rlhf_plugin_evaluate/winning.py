"""Who wins, prompt by prompt, and how often: plain and with the length difference taken out.

Suffix ``_N``: prompts. A win is 1, a tie 0.5, a loss 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rlhf_core.runs import percentile_tails, t_quantile, win_rate

Floats = npt.NDArray[np.float64]
RIDGE = 0.5
"""Penalty on the length coefficient (a normal prior of variance 2), without which wins that lengths alone separate
would make it infinite."""


class Rate(NamedTuple):
    """A share and its 95 % interval, over ``n`` prompts."""

    rate: float
    low: float
    high: float
    n: int


def wins(ours: Sequence[float | None], theirs: Sequence[float | None], tolerance: float = 1e-9) -> list[float | None]:
    """Win, tie or loss of each prompt by two scores; None where one is missing."""
    return [
        None if a is None or b is None else 1.0 if a > b + tolerance else 0.0 if b > a + tolerance else 0.5
        for a, b in zip(ours, theirs, strict=True)
    ]


def plain(outcomes: Sequence[float | None]) -> Rate | None:
    """Mean outcome with Wilson's interval; None if no prompt has an outcome."""
    decided = [o for o in outcomes if o is not None]
    return Rate(*win_rate(decided, [0.5] * len(decided))) if decided else None


def length_controlled(
    outcomes: Sequence[float | None],
    lengths: Sequence[int],
    base_lengths: Sequence[int],
    seed: int = 0,
    resamples: int = 500,
) -> Rate | None:
    r"""Win rate that is expected if both wrote equally long responses.

    The generalised linear model of AlpacaEval 2 (Dubois et al. 2024, "Length-Controlled AlpacaEval", eq. 2), of one
    pair of models and so without its term for the difficulty of an instruction:

    .. math:: P(win_n) = \sigma\big(\theta + \phi \tanh(\Delta_n / s)\big)

    with :math:`\Delta` the difference in tokens and s its standard deviation. Outcomes of 0.5 count as half a win and
    half a loss. The estimate is :math:`\sigma(\theta)`; its interval is that of a bootstrap over prompts.

    Returns:
        None if no prompt has an outcome.
    """
    rows = [(o, a - b) for o, a, b in zip(outcomes, lengths, base_lengths, strict=True) if o is not None]
    if not rows:
        return None
    won_N, gap_N = np.array([r[0] for r in rows]), np.array([float(r[1]) for r in rows])
    gap_N = np.tanh(gap_N / max(float(gap_N.std()), 1e-9))
    draw = np.random.default_rng([seed, 17])
    picks = (draw.integers(0, len(rows), len(rows)) for _ in range(resamples))
    several = [_intercept(won_N[i], gap_N[i]) for i in picks]
    low, high = np.quantile(several, percentile_tails(len(rows)))
    return Rate(_intercept(won_N, gap_N), float(low), float(high), len(rows))


def _intercept(won_N: Floats, gap_N: Floats) -> float:
    """sigmoid(theta) of the fit, by Newton's method; half a win and half a loss are added so that it is finite."""
    design = np.stack([np.ones_like(gap_N), gap_N], 1)
    n = len(won_N)
    weights, penalty = np.zeros(2), np.array([0.0, RIDGE])
    target = won_N + (0.5 - won_N) / (n + 1)
    for _ in range(25):
        p = 1 / (1 + np.exp(-np.clip(design @ weights, -30, 30)))
        gradient = design.T @ (target - p) - penalty * weights
        hessian = (design * (p * (1 - p))[:, None]).T @ design + np.diag(penalty + 1e-9)
        step = np.linalg.solve(hessian, gradient)
        weights = weights + np.clip(step, -2, 2)
        if float(np.abs(step).max()) < 1e-8:
            break
    return float(1 / (1 + np.exp(-weights[0])))


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, and Student's 95 % interval of it."""
    array = np.asarray(values, np.float64)
    centre = float(array.mean())
    half = t_quantile(len(array) - 1) * float(array.std(ddof=1)) / len(array) ** 0.5 if len(array) > 1 else 0.0
    return centre, centre - half, centre + half
