"""Finding the first wrong step: the measure of ProcessBench (Zheng et al. 2024).

A step is called wrong when its probability of being right is below a threshold; the first such step is the verdict, -1
if there is none. F1 is the harmonic mean of two accuracies: the index on solutions with an error, -1 on the others.

Suffixes: ``_N`` solutions, ``_S`` the steps of each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FirstError:
    """How well first errors were found, all from 0 to 1."""

    f1: float
    errors_found: float
    """Accuracy on solutions with an error: the very index."""
    passed: float
    """Accuracy on solutions without one: none is seen."""
    threshold: float


def verdicts(grid_NS: Floats, threshold: float) -> npt.NDArray[np.int64]:
    """Index ``[N]`` of the first step below the threshold, -1 where there is none."""
    below_NS = grid_NS < threshold
    return np.where(below_NS.any(1), below_NS.argmax(1), -1)


def grid(right: Sequence[Floats]) -> Floats:
    """Rows of different lengths as ``[N, S]``; behind their ends nothing is ever called wrong."""
    grid_NS = np.full((len(right), max(map(len, right))), np.inf)
    for row, right_S in zip(grid_NS, right):
        row[: len(right_S)] = right_S
    return grid_NS


def measure(right: Sequence[Floats], labels: Sequence[int], threshold: float) -> FirstError:
    return _measure(grid(right), np.asarray(labels), threshold)


def _measure(grid_NS: Floats, labels_N: npt.NDArray[Any], threshold: float) -> FirstError:
    hits_N, errors_N = verdicts(grid_NS, threshold) == labels_N, labels_N >= 0
    if errors_N.all() or not errors_N.any():
        raise ValueError("F1 needs solutions with an error and solutions without")
    errors_found, passed = float(hits_N[errors_N].mean()), float(hits_N[~errors_N].mean())
    f1 = 2 * errors_found * passed / (errors_found + passed) if errors_found + passed else 0.0
    return FirstError(f1, errors_found, passed, threshold)


def best(right: Sequence[Floats], labels: Sequence[int], most: int = 200) -> FirstError:
    """The best F1 over at most ``most`` thresholds, as in the paper: it has seen the labels."""
    grid_NS, labels_N = grid(right), np.asarray(labels)
    tried = np.unique(np.quantile(np.concatenate(right), np.linspace(0, 1, most)))
    return max((_measure(grid_NS, labels_N, float(t)) for t in [*tried, 0.5]), key=lambda m: m.f1)


def crossed(right: Sequence[Floats], labels: Sequence[int]) -> FirstError | None:
    """F1 with each half's threshold chosen on the other (mean: ``threshold``); None with too few of a kind."""
    with_error = [n for n, label in enumerate(labels) if label >= 0]
    without_error = [n for n, label in enumerate(labels) if label < 0]
    if min(len(with_error), len(without_error)) < 2:
        return None
    halves = [sorted(with_error[half::2] + without_error[half::2]) for half in (0, 1)]
    thresholds = [best([right[i] for i in rows], [labels[i] for i in rows]).threshold for rows in halves]
    shifted: dict[int, Floats] = {}
    for half, rows in enumerate(halves):
        for i in rows:
            shifted[i] = right[i] - thresholds[1 - half]
    result = measure([shifted[i] for i in range(len(labels))], labels, 0.0)
    return FirstError(result.f1, result.errors_found, result.passed, float(np.mean(thresholds)))


def by_chance(right: Sequence[Floats], labels: Sequence[int], draws: int = 20) -> float | None:
    """Mean best F1 of another solution's scores with as many steps; None where only one kind remains."""
    rng = np.random.default_rng(0)
    by_steps = defaultdict[int, list[int]](list)
    for n, right_S in enumerate(right):
        by_steps[len(right_S)].append(n)
    groups = [rows for rows in by_steps.values() if len(rows) > 1]
    kept_rows = [n for rows in groups for n in rows]
    if len({labels[n] >= 0 for n in kept_rows}) < 2:
        return None
    f1s: list[float] = []
    for _ in range(draws):
        mixed = dict[int, Floats]()
        for order in map(rng.permutation, groups):
            mixed |= {n: right[m] for n, m in zip(order, np.roll(order, 1))}
        f1s.append(best([mixed[n] for n in kept_rows], [labels[n] for n in kept_rows]).f1)
    return float(np.mean(f1s))


def report(right: Sequence[Floats], labels: Sequence[int], threshold: float = 0.5) -> dict[str, Any]:
    """All of them under names: at ``threshold``, ``best``, ``crossed`` (where it can be) and ``chance``."""
    rows = {
        "at_threshold": measure(right, labels, threshold),
        "best": best(right, labels),
        "crossed": crossed(right, labels),
    }
    chance = by_chance(right, labels)
    return {
        "solutions": len(labels),
        "with_error": sum(n >= 0 for n in labels),
        **{name: {k: round(v, 4) for k, v in asdict(result).items()} for name, result in rows.items() if result},
        "chance": None if chance is None else round(chance, 4),
    }
