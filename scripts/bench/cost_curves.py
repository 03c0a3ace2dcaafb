"""Seconds of one of our GRPO steps against group size and completion length; SmolLM2-135M, float32, two threads."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from scripts.bench._sides import as_folder, smollm2, step_side

CURVES = {
    "group size": {g: f"4x{g}x64" for g in (2, 4, 8, 16, 32)},
    "completion length": {n: f"2x4x{n}" for n in (64, 128, 256, 512, 1024)},
}
"""Curve -> x -> work, as ``_grpo_work.find`` reads it."""
THREADS = 2


def measure(case: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        side = step_side("ours", case, as_folder(smollm2()), Path(scratch) / "ours", 3, THREADS)
        side.step()
        side.close()
    figures = side.figures()
    return {
        "seconds": figures["median_seconds"],
        **figures["parts_median_seconds"],
        "peak_rss_mb": figures["peak_rss_mb"],
        "tokens": figures["tokens_generated"][0],
    }


def cases() -> dict[str, Callable[[], dict[str, Any]]]:
    return {f"{curve} {x}": partial(measure, case) for curve, points in CURVES.items() for x, case in points.items()}
