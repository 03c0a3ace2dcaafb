"""Seconds of one of our GRPO steps against group size and completion length.

    python -m scripts.bench cost_curves

SmolLM2-135M, float32, two threads, ``rlhf train`` itself: 4 prompts x 2 to 32 completions of 64 tokens; 2 prompts x 4
completions of 64 to 1024 tokens. A short warm-up step and one counted step each. Draws ``cost_curves.svg`` beside the
JSON when matplotlib is installed (``pip install 'rlhf-core[dev]'``), with the curve against staleness if
``python -m scripts.bench staleness`` has been recorded.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from scripts.bench._sides import Side, as_folder, smollm2

CURVES = {
    "group size": {g: f"4x{g}x64" for g in (2, 4, 8, 16, 32)},
    "completion length": {n: f"2x4x{n}" for n in (64, 128, 256, 512, 1024)},
}
"""Curve -> x -> work, as ``_grpo_work.find`` reads it."""
THREADS = 2
Curve = dict[int, Mapping[str, float]]
"""x -> seconds by part; ``seconds`` is the whole step."""


def measure(case: str) -> dict[str, Any]:
    """Seconds of one step, by part."""
    with tempfile.TemporaryDirectory() as scratch:
        side = Side("ours", case, as_folder(smollm2()), Path(scratch) / "ours", 3, THREADS)
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
    """For ``python -m scripts.bench``."""
    return {f"{curve} {x}": partial(measure, case) for curve, points in CURVES.items() for x, case in points.items()}


def finish(results: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """Draw what has been measured."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("cost_curves: no drawing without matplotlib (pip install 'rlhf-core[dev]')")
        return
    drawn: dict[str, Curve] = {
        curve: {x: results[f"{curve} {x}"] for x in points if f"{curve} {x}" in results}
        for curve, points in CURVES.items()
    }
    if stale := staleness(folder / "staleness.json"):
        drawn["max_staleness"] = stale
    figure = Figure(figsize=(4.5 * len(drawn), 3.5), layout="constrained")
    for axes, (name, by_x) in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn.items(), strict=True):
        for part, label in (("seconds", "whole step"), ("rollout", "rollout"), ("update", "update")):
            axes.plot(list(by_x), [p[part] for p in by_x.values()], marker="o", label=label)
        axes.set(xlabel=name, ylabel="seconds", xscale="linear" if 0 in by_x else "log")
        axes.set_xticks(list(by_x), labels=list(map(str, by_x)))
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.legend()
    figure.savefig(folder / "cost_curves.svg")


def staleness(path: Path) -> Curve:
    """The recorded curve of ``staleness`` for SmolLM2 with one thread per operation; empty if there is none."""
    if not path.is_file():
        return {}
    rows = json.loads(path.read_text())["cases"]["run"]["results"]
    start = "smollm2, threads 1, max_staleness "
    return {
        int(key.removeprefix(start)): {**row, "seconds": row["step"]}
        for key, row in rows.items()
        if key.startswith(start)
    }


def main() -> None:
    """Command line: print the points."""
    for case, work in cases().items():
        print(case, work())


if __name__ == "__main__":
    main()
