"""How features are added up: ablation of each, and weights that were fitted to other pairs than they are tested on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlhf_plugin_tts.validation import Floats, Rows, rows_by_group

RIDGE = 1.0
"""Weight of the squared weights in the fit, per pair set."""
FOLDS = 5


def standardised(columns: Mapping[str, Floats]) -> Floats:
    """Columns ``[N, F]`` with mean 0 and variance 1; what is missing is at the mean."""
    matrix = np.stack(list(columns.values()), axis=1)
    spread = np.nanstd(matrix, axis=0)
    return np.nan_to_num((matrix - np.nanmean(matrix, axis=0)) / np.where(spread > 0, spread, 1))


def pairs_within(reference: Floats, by_group: Sequence[Rows]) -> npt.NDArray[np.intp]:
    """Pairs ``[P, 2]`` of clips of one group, the better rated first; equal ratings make none."""
    rows = [
        (i, j) if reference[i] > reference[j] else (j, i)
        for group in by_group
        for n, i in enumerate(group)
        for j in group[n + 1 :]
        if reference[i] != reference[j]
    ]
    return np.array(rows, np.intp).reshape(-1, 2)


def pair_accuracy(values: Floats, pairs: npt.NDArray[np.intp]) -> float:
    """Share of pairs in the order of the ratings; a tie counts half."""
    margins = values[pairs[:, 0]] - values[pairs[:, 1]]
    return float(np.where(margins == 0, 0.5, margins > 0).mean()) if len(pairs) else float("nan")


def fit(matrix: Floats, pairs: npt.NDArray[np.intp]) -> Floats:
    """Bradley-Terry weights ``[F]`` of the differences, with a ridge (Newton's method)."""
    differences = matrix[pairs[:, 0]] - matrix[pairs[:, 1]]
    weights = np.zeros(matrix.shape[1])
    for _ in range(25):
        wrong = 1 / (1 + np.exp(np.clip(differences @ weights, -30, 30)))
        gradient = differences.T @ wrong - RIDGE * weights
        curvature = (differences * (wrong * (1 - wrong))[:, None]).T @ differences + RIDGE * np.eye(len(weights))
        step = np.linalg.solve(curvature, gradient)
        weights = weights + step
        if np.abs(step).max() < 1e-8:
            break
    return weights


def study(
    columns: Mapping[str, Floats],
    weights: Mapping[str, float],
    reference: Floats,
    groups: Sequence[str],
    seed: int,
) -> dict[str, Any]:
    """Accuracy of the weighted sum on pairs of clips of one group, without each column, and with fitted weights."""
    names, matrix = list(columns), standardised(columns)
    start = np.array([weights[name] for name in names])
    by_group = rows_by_group(groups)
    pairs = pairs_within(reference, by_group)
    accuracy_of_all = pair_accuracy(matrix @ start, pairs)
    ablation = {}
    for i, name in enumerate(names):
        without = np.where(np.arange(len(names)) == i, 0.0, start)
        accuracy = pair_accuracy(matrix @ without, pairs) if len(names) > 1 else 0.5
        ablation[name] = {"accuracy": accuracy, "change": accuracy - accuracy_of_all}
    before, after, tested = [], [], 0
    for train, test in folds(pairs, by_group, len(reference), seed):
        fitted = fit(matrix, train)
        tested += len(test)
        before.append(pair_accuracy(matrix @ start, test) * len(test))
        after.append(pair_accuracy(matrix @ fitted, test) * len(test))
    fitted = fit(matrix, pairs)
    size = np.abs(fitted).sum() or 1.0
    better = bool(tested and sum(after) > sum(before))
    return {
        "pairs": len(pairs),
        "accuracy": accuracy_of_all,
        "ablation": ablation,
        "heldout": {
            "pairs": tested,
            "accuracy": sum(before) / tested if tested else float("nan"),
            "reweighted_accuracy": sum(after) / tested if tested else float("nan"),
        },
        "weights": dict(zip(names, start.tolist())),
        "fitted_weights": dict(zip(names, (fitted / size).tolist())),
        "recommended": "fitted_weights" if better else "weights",
    }


def folds(pairs: npt.NDArray[np.intp], by_group: Sequence[Rows], count: int, seed: int) -> list[tuple[Any, Any]]:
    """(train, test) pairs without a common clip: each group held out once; without groups a fifth of the clips."""
    fold_N = np.zeros(count, int)
    if len(by_group) > 2:
        for number, rows in enumerate(by_group):
            fold_N[rows] = number
    else:
        fold_N = np.random.default_rng(seed).permutation(count) % FOLDS
    result = []
    for fold in np.unique(fold_N):
        test = pairs[(fold_N[pairs] == fold).all(axis=1)]
        train = pairs[(fold_N[pairs] != fold).all(axis=1)]
        if len(test) and len(train):
            result.append((train, test))
    return result
