"""Markdown tables, and figures over several seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

mean = fmean


def markdown(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; the first column may be headed ""."""
    lines = [f"| {' | '.join(headers)} |".replace("|  |", "| |"), "|" + "---|" * len(headers)]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def spread(values: Iterable[float | None], digits: int = 3) -> str:
    """Mean, and lowest to highest where there are several. "-" if one is missing: a missing score is none of zero."""
    all_values = list(values)
    if any(v is None for v in all_values) or not all_values:
        return "-"
    numbers = [v for v in all_values if v is not None]
    text = f"{fmean(numbers):.{digits}f}"
    return text if len(numbers) == 1 else f"{text} ({min(numbers):.{digits}f} to {max(numbers):.{digits}f})"


def interval(values: Sequence[float], digits: int = 3) -> str:
    """A share with its confidence interval, given as ``(share, low, high, ...)``."""
    return f"{values[0]:.{digits}f} ({values[1]:.{digits}f} to {values[2]:.{digits}f})"
