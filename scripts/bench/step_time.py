"""One whole GRPO step (rollout, reward, advantage, update), ours against TRL's GRPOTrainer on the same work.

    python -m scripts.bench.step_time --case a --runs 3 --model SmolLM2-135M-Instruct.Q4_1.gguf

No KL term, AdamW, micro-batches of 8 completions, two threads. Completions have the same lengths on both sides, from
one table: in ours a request has its own ``max_tokens`` and the end of the text is banned, in TRL's the end is
impossible before and certain at the row's last token. What differs is how the work is done, which is the question.
Ours is ``rlhf train`` itself (``_grpo_ours.py``); TRL's settings are in ``_grpo_trl.py``; ``_sides.py`` takes turns,
``_floor.py`` says what the share of the floor is. The ratio depends on the processor, whose name and whose matrix
products' speed stand beside it. Prints a table; ``python -m scripts.bench step_time`` records JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from scripts.bench._floor import operations, peaks, shares
from scripts.bench._grpo_work import find
from scripts.bench._processor import processor
from scripts.bench._sides import as_folder, compare, smollm2

RUNS = {"a": 3, "b": 1, "c": 2, "d": 2, "e": 3, "f": 2}
"""Counted steps of each side: a step of case b takes TRL minutes."""
THREADS = 2


def measure(case: str, model: Path | str, runs: int, threads: int = THREADS) -> dict[str, Any]:
    """Compare, and relate both sides to the floor; products are measured before and after, and the better counts."""
    work = find(case)
    folder = as_folder(model)
    before = peaks(work.dtype, threads)
    result = compare(case, folder, runs, threads)
    after = peaks(work.dtype, threads)
    best = {kind: max(before[kind], after[kind]) for kind in before}
    result |= {"processor": processor(), "product_gflops": best, "operations_g": operations(work, folder)}
    for side in ("ours", "trl"):
        parts = result[side]["parts_median_seconds"]
        result[side]["share_of_floor"] = shares(work, folder, max(best.values()), parts)
        result[side]["share_of_floor_of_torchs_products"] = shares(work, folder, best["torch"], parts)
    return {**result, "trl_version": metadata.version("trl")}


def cases() -> dict[str, Callable[[], dict[str, Any]]]:
    """For ``python -m scripts.bench``."""
    return {case: lambda case=case, runs=runs: measure(case, smollm2(), runs) for case, runs in RUNS.items()}


def table(results: dict[str, dict[str, Any]]) -> str:
    """The figures that matter, a case a line."""
    lines = [
        "case   ours s   TRL s  times  rollout  update  memory  floor: rollout update  GFLOP/s of a product  work",
        *dict.fromkeys(f"processor: {r['processor']}" for r in results.values()),
    ]
    for case, r in results.items():
        part, floor = r["speedup_of_parts"], r["ours"]["share_of_floor"]
        lines.append(
            f"{case:5}{r['ours']['median_seconds']:8.2f}{r['trl']['median_seconds']:8.2f}{r['speedup_vs_trl']:7.2f}"
            f"{part['rollout']:9.2f}{part['update']:8.2f}{r['peak_rss_of_trl']:8.2f}"
            f"{floor['rollout']:15.0%}{floor['update']:7.0%}  "
            f"{', '.join(f'{kind} {speed:.0f}' for kind, speed in r['product_gflops'].items()):20}  {r['work']}"
        )
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help=".gguf file or model folder; default RLHF_SMOLLM2_GGUF")
    parser.add_argument("--case", choices=sorted(RUNS), action="append", help="default all")
    parser.add_argument("--runs", type=int, help="counted steps of each side")
    parser.add_argument("--threads", type=int, default=THREADS, help="CPU threads of the side whose turn it is")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    args = parser.parse_args()
    results = {
        case: measure(case, args.model or smollm2(), args.runs or RUNS[case], args.threads)
        for case in args.case or RUNS
    }
    print(json.dumps(results, indent=2) if args.json else table(results))


if __name__ == "__main__":
    main()
