"""Puts scores of different rewards on scales that can be added."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rlhf_plugin_composite.config import PartSettings

Raw = Sequence[float | None]
LEAST_STD = 1e-8
"""Below it all scores were equal."""


class Statistics:
    """Count, mean and variance of all that was added, in one pass (Welford 1962; Chan et al. 1979).

    Example:
        >>> s = Statistics(); s.add([1.0, 3.0]); (s.mean, s.std)
        (2.0, 1.0)
    """

    def __init__(self, count: float = 0, mean: float = 0.0, squares: float = 0.0) -> None:
        self.count, self.mean, self.squares = count, mean, squares

    def add(self, values: Sequence[float]) -> None:
        """Take in further values, one after the other; the order is part of what a resume repeats."""
        for value in values:
            self.count += 1
            gap = value - self.mean
            self.mean += gap / self.count
            self.squares += gap * (value - self.mean)

    @property
    def std(self) -> float:
        """Population standard deviation; 0 of nothing."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0


class Normaliser:
    """Maps the raw scores of one part. Missing scores stay missing and count nowhere."""

    def __init__(self, settings: PartSettings) -> None:
        self.settings = settings
        self.statistics = Statistics()
        if settings.mean is not None and settings.std is not None:
            self.statistics = Statistics(1, float(settings.mean), float(settings.std) ** 2)
        self.learns = settings.normalise == "zscore" and settings.statistics == "running"

    def __call__(self, raw: Raw) -> list[float | None]:
        """Normalised scores. Running statistics are those of earlier calls, so that a score does not depend on its
        batch; only the first call, which has none, uses its own."""
        scores = [score for score in raw if score is not None]
        first = self.learns and self.statistics.count < 2
        if first:
            self._learn(scores)
        normalised = [None if score is None else self._normalised(score) for score in raw]
        if self.learns and not first:
            self._learn(scores)
        return normalised

    def _learn(self, values: Sequence[float]) -> None:
        limit, statistics = self.settings.freeze_after, self.statistics
        no_spread = (
            limit is not None and statistics.count >= limit and statistics.std < LEAST_STD
        )  # nothing to freeze yet
        allowed = len(values) if limit is None or no_spread else max(0, limit - int(statistics.count))
        self.statistics.add(values[:allowed])

    def _normalised(self, raw: float) -> float:
        if self.settings.normalise == "none":
            return raw
        if self.settings.normalise == "sigmoid":
            return sigmoid(raw / self.settings.scale)
        if self.statistics.std < LEAST_STD:
            return 0.0  # equal scores so far: how far the next one lies from them cannot be told
        z = (raw - self.statistics.mean) / self.statistics.std
        return min(self.settings.clip, max(-self.settings.clip, z))

    def state_dict(self) -> dict[str, Any]:
        """Count, mean and sum of squared gaps, which give the statistics back bit for bit."""
        s = self.statistics
        return {"count": s.count, "mean": s.mean, "squares": s.squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        self.statistics = Statistics(int(state["count"]), float(state["mean"]), float(state["squares"]))


def sigmoid(x: float) -> float:
    """``1 / (1 + exp(-x))`` without overflow."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
