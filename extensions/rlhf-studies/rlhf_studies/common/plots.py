"""Figures, where matplotlib is installed."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def panels(file: Path, rows: int, columns: int, size: tuple[float, float]) -> Generator[list[Any] | None, None, None]:
    """Axes to draw on, saved to ``file`` at the end; None without matplotlib."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        logging.getLogger(__name__).warning("%s is not drawn: pip install matplotlib", file.name)
        yield None
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(rows, columns, figsize=size, constrained_layout=True)
    yield list(axes.flat)
    figure.savefig(file, dpi=110)
    plt.close(figure)
