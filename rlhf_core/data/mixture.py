"""Several sources in one stream by weight: the draws of an offline run, and the order of held-out rows."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from rlhf_core.types.errors import DatasetError

LATER = ("media", "tools", "turn", "chosen_turn", "rejected_turn")
"""Fields of rows that are hashed where they hold something, so that earlier runs keep their hash."""


def neediest(share: Mapping[str, float], taken: Mapping[str, int]) -> str:
    """The source that is furthest behind its share of everything taken so far."""
    done = sum(taken.values()) + 1
    return max(share, key=lambda s: (share[s] * done - taken[s], s))


def interleave(sources: Sequence[str], weights: Mapping[str, float]) -> list[int]:
    """Indices of the rows in an order of which every beginning holds each source's share, while its rows last.

    Args:
        sources: source of each row.
        weights: source -> weight.

    Example:
        >>> interleave(["a", "a", "a", "b"], {"a": 1.0, "b": 1.0})
        [3, 0, 1, 2]
    """
    rows = by_source(sources)
    taken: Counter[str] = Counter()
    order: list[int] = []
    while len(order) < len(sources):
        left = {s: weights[s] for s in rows if taken[s] < len(rows[s])}
        total = sum(left.values())
        source = neediest({s: w / total for s, w in left.items()}, Counter({s: taken[s] for s in left}))
        order.append(rows[source][taken[source]])
        taken[source] += 1
    return order


class ExampleOrder:
    """Which example is drawn when: a fresh seeded permutation of each source whenever it is used up, mixed by weight.

    Args:
        sources: source of each example.
        weights: source -> weight.
        seed: the run's.
        shuffle: False keeps the order of the rows.
    """

    def __init__(self, sources: Sequence[str], weights: Mapping[str, float], seed: int, shuffle: bool = True) -> None:
        self.rows = by_source(sources)
        total = sum(weights[s] for s in self.rows)
        self.share = {s: weights[s] / total for s in self.rows}
        self.seed, self.shuffle = seed, shuffle
        self._taken: Counter[str] = Counter()
        self._walks: dict[str, list[int]] = {}
        self._drawn: list[int] = []

    def draws(self, first: int, count: int) -> list[int]:
        """Indices of the draws ``first`` to ``first + count - 1``; the same whatever was drawn before."""
        while len(self._drawn) < first + count:
            self._drawn.append(self._next())
        return self._drawn[first : first + count]

    def _next(self) -> int:
        source = neediest(self.share, self._taken)
        epoch, index = divmod(self._taken[source], len(self.rows[source]))
        if index == 0:
            self._walks[source] = self._permutation(source, epoch)
        self._taken[source] += 1
        return self._walks[source][index]

    def _permutation(self, source: str, epoch: int) -> list[int]:
        rows = self.rows[source]
        if not self.shuffle:
            return rows
        key = [self.seed, epoch] if len(self.rows) == 1 else [self.seed, list(self.rows).index(source), epoch]
        return [rows[i] for i in np.random.default_rng(key).permutation(len(rows))]


def by_source(sources: Sequence[str]) -> dict[str, list[int]]:
    """Source -> indices of its rows, sources in alphabetical order."""
    rows: dict[str, list[int]] = {s: [] for s in sorted(set(sources))}
    for index, source in enumerate(sources):
        rows[source].append(index)
    return rows


def fingerprint(rows: Iterable[Any]) -> str:
    """Hash of everything that prompts, pairs or demonstrations hold, texts included, in order (16 hex digits)."""
    digest = hashlib.sha256()
    for row in rows:
        columns = asdict(row)
        for name in LATER:
            if not columns.get(name):
                columns.pop(name, None)
        digest.update(json.dumps(columns, sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()[:16]


def check_fingerprint(what: str, then: str, now: str) -> None:
    """Refuse to resume with other rows."""
    if then != now:
        raise DatasetError(
            f"the {what} changed since the checkpoint",
            fix="resume with the same dataset, or start a new run from the checkpoint's model",
        )
