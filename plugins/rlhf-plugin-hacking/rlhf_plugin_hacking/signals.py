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
