"""A kissing configuration without a model: the largest independent set among the shortest vectors of a shell of Z^D,
two of squared norm n being compatible if their inner product is at most n / 2. For D = 11, n = 4 that is 22 + 5,280
vectors; Construction A (Conway and Sloane, chapter 5) lies inside: 22 + 16 * 35."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from rlhf_plugin_discover.kissing.independent import independent_set

LARGEST_SHELL = 20_000


def search(
    dimensions: int = 11,
    *,
    norm: int = 4,
    seed: int = 0,
    steps: int = 150_000,
    starts: int = 8,
    seconds: float = 60.0,
    improved: Callable[[int, float], None] = lambda count, seconds: None,
) -> list[list[int]]:
    """The largest set of vectors of squared norm ``norm`` that ``starts`` local searches find, by seed."""
    started = time.perf_counter()
    vectors = shell(dimensions, norm)
    near = too_near(vectors)
    largest: list[int] = []

    def elapsed() -> float:
        return time.perf_counter() - started

    def keep_larger(best: list[int]) -> None:
        if len(best) > len(largest):
            largest[:] = best
            improved(len(best), elapsed())

    for start in range(starts):
        if start == 0 or elapsed() < seconds:
            independent_set(
                near, seed=seed * starts + start, steps=steps, stop=lambda: elapsed() > seconds, improved=keep_larger
            )
    return vectors[sorted(largest)].tolist()


def shell(dimensions: int, norm: int) -> np.ndarray:
    """All integer vectors of squared norm ``norm``, ``[N, D]`` int64."""
    rows: list[tuple[int, ...]] = []
    for row in _rows(dimensions, norm):
        rows.append(row)
        if len(rows) > LARGEST_SHELL:
            raise ValueError(
                f"more than {LARGEST_SHELL} integer vectors have squared norm {norm} in {dimensions} "
                "dimensions: too many to search"
            )
    if not rows:
        raise ValueError(f"no integer vector has squared norm {norm} in {dimensions} dimensions")
    return np.array(rows, dtype=np.int64)


def _rows(dimensions: int, norm: int) -> Iterator[tuple[int, ...]]:
    if dimensions == 0:
        if norm == 0:
            yield ()
        return
    largest = int(norm**0.5 + 1e-9)
    for first in range(-largest, largest + 1):
        for others in _rows(dimensions - 1, norm - first * first):
            yield (first, *others)


def too_near(vectors: np.ndarray) -> list[list[int]]:
    norm = int(vectors[0] @ vectors[0])
    near: list[list[int]] = []
    for i, vector in enumerate(vectors):
        row = np.flatnonzero(2 * (vectors @ vector) > norm)
        near.append(row[row != i].tolist())
    return near
