"""Whether vectors C are a kissing configuration, without a rounding error: 0 is not in C and ``min |x - y| >= max |x|``
over x != y in C, compared as squares. A coordinate is an integer, or ``[a, b]`` for ``a + b sqrt(3)``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MOST_VECTORS, MOST_DIGITS = 5_000, 1_000
"""More than the proven upper bound of any dimension up to 15, and more digits than any construction needs."""
LARGEST, INT64 = 10**MOST_DIGITS, 2**63 - 1


@dataclass(frozen=True, slots=True)
class Checked:
    """What a set of vectors is worth."""

    valid: bool
    points: int
    """How many vectors there are, valid or not."""
    reason: str = ""
    """Exactly what is wrong; "" if nothing is."""
    min_distance2: int | None = None
    """Smallest squared distance of two vectors; None if there are fewer than two, or they are no integer vectors."""
    max_norm2: int | None = None


def check_kissing(points: Any, dimensions: int) -> Checked:
    """Judge whatever a program left behind.

    Example:
        >>> check_kissing([[1, 0], [-1, 0], [0, 1], [0, -1]], 2).valid
        True
        >>> check_kissing([[1, 1], [1, 0]], 2).reason.partition(":")[0]
        'minimum squared distance 1 < maximum squared norm 2'
    """
    count = len(points) if isinstance(points, list) else 0
    if wrong := malformed(points, dimensions):
        return Checked(False, count, wrong)
    if any(type(x) is list for row in points for x in row):
        return _check_surds([[x if type(x) is list else [x, 0] for x in row] for row in points])
    norms = [sum(x * x for x in row) for row in points]
    if 0 in norms:
        return Checked(False, count, f"vector {norms.index(0)} is the zero vector")
    max_norm2 = max(norms)
    nearest = nearest_pair(points)
    if nearest is None:
        return Checked(True, count, max_norm2=max_norm2)
    distance2, i, j = nearest
    if distance2 >= max_norm2:
        return Checked(True, count, "", distance2, max_norm2)
    longest = norms.index(max_norm2)
    return Checked(
        False,
        count,
        f"minimum squared distance {distance2} < maximum squared norm {max_norm2}: vectors {i} "
        f"{points[i]} and {j} {points[j]} are at squared distance {distance2}, vector {longest} "
        f"{points[longest]} has squared norm {max_norm2}",
        distance2,
        max_norm2,
    )


def malformed(points: Any, dimensions: int) -> str:
    if not isinstance(points, list):
        return f"the vectors must be a list, not {type(points).__name__}"
    if not points:
        return "there is no vector"
    if len(points) > MOST_VECTORS:
        return f"{len(points)} vectors are more than the {MOST_VECTORS} that are looked at"
    for i, row in enumerate(points):
        if not isinstance(row, list) or len(row) != dimensions:
            actual = f"has {len(row)} coordinates" if isinstance(row, list) else f"is {str(row)[:40]}"
            return f"vector {i} {actual}, it needs {dimensions}"
        for value in (part for x in row for part in (x if type(x) is list and len(x) == 2 else [x])):
            if type(value) is not int:  # True is no number
                return f"vector {i} has the coordinate {str(value)[:40]!r}, which is not an integer"
            if abs(value) >= LARGEST:
                return f"vector {i} has a coordinate of more than {MOST_DIGITS} digits"
    return ""


def nearest_pair(points: Sequence[Sequence[int]]) -> tuple[int, int, int] | None:
    """Smallest squared distance and its first pair (int64, else Python's integers); None with fewer than two
    vectors."""
    if len(points) < 2:
        return None
    largest = max(abs(x) for row in points for x in row)
    if len(points[0]) * (2 * largest) ** 2 <= INT64:
        return _nearest_int64(np.array(points, dtype=np.int64))
    return min(
        (sum((a - b) ** 2 for a, b in zip(x, y)), i, j)
        for i, x in enumerate(points)
        for j, y in enumerate(points[i + 1 :], i + 1)
    )


def _nearest_int64(points: np.ndarray) -> tuple[int, int, int]:
    """The same for ``[N, D]`` int64 whose squared distances all fit."""
    best = (INT64, 0, 0)
    for i in range(len(points) - 1):
        gaps = points[i + 1 :] - points[i]
        distances = np.einsum("nd,nd->n", gaps, gaps)
        nearest = int(distances.argmin())
        if int(distances[nearest]) < best[0]:
            best = (int(distances[nearest]), i, i + 1 + nearest)
    return best


def _check_surds(points: Sequence[Sequence[Sequence[int]]]) -> Checked:
    """The same for coordinates ``a + b sqrt(3)``, ``[N, D, 2]``; squares are of this form, too."""
    largest = max(abs(part) for row in points for x in row for part in x)
    small = 3 * (16 * len(points[0]) * largest**2) ** 2 <= INT64
    a, b = np.moveaxis(np.array(points, dtype=np.int64 if small else object), -1, 0)
    norms = _squared(a, b)
    if (zero := np.flatnonzero((norms[0] == 0) & (norms[1] == 0))).size:
        return Checked(False, len(points), f"vector {zero[0]} is the zero vector")
    for i in range(len(points)):
        if _negative(norms[0][i] - norms[0], norms[1][i] - norms[1]).any():
            continue  # another vector is longer
        for j in range(len(points) - 1):
            gap = _squared(a[j + 1 :] - a[j], b[j + 1 :] - b[j])
            if (near := np.flatnonzero(_negative(gap[0] - norms[0][i], gap[1] - norms[1][i]))).size:
                at = near[0]
                reason = (
                    f"squared distance {gap[0][at]} + {gap[1][at]} sqrt(3) of vectors {j} and {j + 1 + at} is below "
                    f"the maximum squared norm {norms[0][i]} + {norms[1][i]} sqrt(3) of vector {i}"
                )
                return Checked(False, len(points), reason)
        break
    return Checked(True, len(points))


def _squared(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Squared lengths of ``a + b sqrt(3)`` ``[N, D]``, as such numbers."""
    return (a * a + 3 * b * b).sum(-1), 2 * (a * b).sum(-1)


def _negative(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where ``a + b sqrt(3)`` is below 0."""
    rational = a * a > 3 * b * b  # the sign is that of a
    return np.where(rational, a < 0, b < 0)
