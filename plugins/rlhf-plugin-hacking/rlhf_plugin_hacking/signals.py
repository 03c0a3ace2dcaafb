"""What all signals share: a finding, the readings that they keep, and a metric's value."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Row = Mapping[str, float]
HISTORY = 1024
"""Readings that are kept; of more, the oldest half is dropped."""
Change = Callable[[str, Any], str]
"""What to type for a setting, with its present value."""


@dataclass(frozen=True)
class Finding:
    """An alarm."""

    problem: str
    cause: str
    change: tuple[str, ...]
    hard: bool = False
    """A HARD_STOP by itself."""


class Signal(Protocol):
    memory: dict[str, Any]
    """All state; JSON values."""

    def read(self, row: Row) -> tuple[dict[str, float], Finding | None]:
        """Metrics of this step (without ``hacking/``), and an alarm or None."""
        ...


class Readings:
    """Rows of numbers in a signal's memory, oldest first."""

    def __init__(self, memory: dict[str, Any]) -> None:
        self.memory = memory
        memory.setdefault("readings", [])
        memory.setdefault("dropped", 0)

    def __len__(self) -> int:
        return len(self.memory["readings"])

    def add(self, row: Sequence[float | None]) -> None:
        """Keep a reading; None where a number is missing."""
        rows = [*self.memory["readings"], list(row)]
        if len(rows) > HISTORY:
            rows = rows[HISTORY // 2 :]
            self.memory["dropped"] += HISTORY // 2
        self.memory["readings"] = rows

    @property
    def dropped(self) -> int:
        """Readings that are not kept any more."""
        return int(self.memory["dropped"])

    def column(self, index: int) -> list[Any]:
        return [row[index] for row in self.memory["readings"]]


def gain(values: Sequence[float] | npt.NDArray[np.float64], early: slice, late: slice) -> float:
    """Mean of the later window less that of the earlier one."""
    return float(np.mean(values[late]) - np.mean(values[early]))


def spread(deviations: Sequence[float], first: int) -> float:
    """The standard deviation that gains are measured in: that of the first readings, or of all where it is larger."""
    squares = [value * value for value in deviations]
    return max(math.sqrt(fmean(squares[:first])), math.sqrt(fmean(squares)), 1e-9)


def number(row: Row, name: str) -> float | None:
    value = row.get(name)
    return float(value) if value is not None and math.isfinite(value) else None


SECOND_REWARD = "--set 'monitors=[{name: hacking, divergence: {second: {name: ...}}}]'"
"""What to type to get the reliable signal."""


def pooled(rows: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Mean and standard deviation of all scores of several equally large steps, from each step's own."""
    centre = fmean(m for m, _ in rows)
    return centre, math.sqrt(fmean(s * s + (m - centre) ** 2 for m, s in rows))


def normal_kl(base: tuple[float, float], now: tuple[float, float]) -> float:
    r"""KL(base || now) of two normal distributions in nats: :math:`\log\frac{s_1}{s_0} + \frac{s_0^2 + (m_0 - m_1)^2}{2
    s_1^2} - \frac{1}{2}`, with a spread of at least a tenth of the baseline's, so that equal rewards are not infinitely
    far away."""
    (m0, s0), (m1, s1) = base, now
    s0 = max(s0, 1e-6)
    s1 = max(s1, 0.1 * s0)
    return math.log(s1 / s0) + (s0 * s0 + (m0 - m1) ** 2) / (2 * s1 * s1) - 0.5
