"""One whole GRPO step (rollout, reward, advantage, update), ours against TRL's GRPOTrainer on the same work.

No KL term, AdamW, two threads. Completions have the same lengths on both sides: in ours a request has its own
``max_tokens`` and the end of the text is banned, in TRL's the end is impossible before and certain at the row's last
token. The ratio depends on the processor, whose name and speed stand beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from scripts.bench._processor import peaks, processor
from scripts.bench._sides import as_folder, compare, smollm2
from scripts.bench._work import find

RUNS = {"a": 3, "b": 1, "c": 2, "d": 2, "e": 3, "f": 2}
"""Counted steps of each side: a step of case b takes TRL minutes."""
THREADS = 2


def measure(case: str, model: Path | str, runs: int, threads: int = THREADS) -> dict[str, Any]:
    """Compare; products are measured before and after, and the better counts."""
    dtype, folder = find(case).dtype, as_folder(model)
    before = peaks(dtype, threads)
    result = compare(case, folder, runs, threads)
    after = peaks(dtype, threads)
    best = {kind: max(before[kind], after[kind]) for kind in before}
    return {**result, "processor": processor(), "product_gflops": best, "trl_version": metadata.version("trl")}


def cases(
    runs: int | None = None, model: Path | None = None, threads: int = THREADS
) -> dict[str, Callable[[], dict[str, Any]]]:
    """``runs`` are counted steps of each side, ``model`` a .gguf file or folder."""
    return {
        case: lambda case=case, usual=usual: measure(case, model or smollm2(), runs or usual, threads)
        for case, usual in RUNS.items()
    }
