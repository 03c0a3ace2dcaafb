"""Small statistics of plain numbers."""

from __future__ import annotations

from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; 0.0 of nothing."""
    return float(sum(values) / len(values)) if values else 0.0
