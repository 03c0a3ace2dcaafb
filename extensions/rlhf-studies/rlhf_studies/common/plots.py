"""Figures."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def panels(file: Path, rows: int, columns: int, size: tuple[float, float]) -> Generator[list[Any], None, None]:
    """Axes to draw on, saved to ``file`` at the end."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(rows, columns, figsize=size, constrained_layout=True)
    yield list(axes.flat)
    figure.savefig(file, dpi=110)
    plt.close(figure)
