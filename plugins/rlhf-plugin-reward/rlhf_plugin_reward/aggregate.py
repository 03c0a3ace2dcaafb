"""From K standardised member scores to one, and what is known about their quality.

Suffixes: ``_N`` samples or pairs, ``_K`` members.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def aggregate(scores_NK: Floats, how: str, penalty: float) -> Floats:
    """Combine members: ``mean``, ``min``, ``median`` or ``mean_minus_std`` = mean - penalty * std (population)."""
    if how == "min":
        return scores_NK.min(1)
    if how == "median":
        return np.median(scores_NK, 1)
    mean_N = scores_NK.mean(1)
    return mean_N - penalty * scores_NK.std(1) if how == "mean_minus_std" else mean_N


def standardise(raw_NK: Floats, mean_K: Floats, std_K: Floats) -> Floats:
    """Put members on one scale, so that a spread means something."""
    return (raw_NK - mean_K) / np.maximum(std_K, 1e-8)


def calibration_error(margins_N: Floats, bins: int = 10) -> float:
    """Expected calibration error of ``sigmoid(margin)`` as the probability that chosen is preferred.

    Each pair is read in the direction the model prefers, confidences in [0.5, 1] (Guo et al. 2017).
    """
    confidence = 1 / (1 + np.exp(-np.abs(margins_N)))
    right = margins_N > 0
    bin_N = np.minimum(((confidence - 0.5) * 2 * bins).astype(int), bins - 1)
    error = 0.0
    for b in range(bins):
        inside_N = bin_N == b
        if inside_N.any():
            error += abs(confidence[inside_N].mean() - right[inside_N].mean()) * inside_N.mean()
    return float(error)


def quality(
    chosen_NK: Floats, rejected_NK: Floats, how: str, penalty: float, mean_K: Floats, std_K: Floats
) -> dict[str, Any]:
    """Held-out pairwise accuracy and calibration of each member and of the ensemble (raw scores in).

    The ensemble's accuracy is that of the aggregate; its calibration, which needs logits, that of the mean margin.
    """
    margins_NK = chosen_NK - rejected_NK
    members = [
        {"accuracy": float((margins_NK[:, k] > 0).mean()), "calibration_error": calibration_error(margins_NK[:, k])}
        for k in range(margins_NK.shape[1])
    ]
    combined = [aggregate(standardise(s, mean_K, std_K), how, penalty) for s in (chosen_NK, rejected_NK)]
    return {
        "pairs": len(margins_NK),
        "members": members,
        "ensemble": {
            "accuracy": float((combined[0] > combined[1]).mean()),
            "calibration_error": calibration_error(margins_NK.mean(1)),
        },
    }
