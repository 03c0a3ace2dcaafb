"""The kissing number in 11 dimensions, without a model: what the baseline of `rlhf discover` finds, seed by seed.

    python scripts/studies/kissing.py --seeds 3 [--json FILE]

Every set is written as a program, run in the sandbox and judged by the verifier ``kissing``; the times are its own. The
check of the largest set is repeated in Python's integers, which cannot overflow.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from rlhf_core.context import BuildContext
from rlhf_core.registry import Registry
from rlhf_core.types import Prompt, Sample
from rlhf_plugin_discover.baseline import program_of
from rlhf_plugin_discover.config import KissingConfig
from rlhf_plugin_discover.kissing.search import search, shell
from rlhf_plugin_discover.verifier import Construction


def one(verifier: Construction, seed: int, starts: int, seconds: float) -> tuple[dict[str, Any], list[list[int]]]:
    """Search with one seed, and the verdict."""
    reached: list[tuple[int, float]] = []
    found = search(
        11, seed=seed, starts=starts, seconds=seconds, improved=lambda count, at: reached.append((count, at))
    )
    asked = Sample(Prompt("kissing", ({"role": "user", "content": ""},)), f"```python\n{program_of(found)}```\n")
    score = verifier.verify(asked)
    times = {
        f"seconds_to_{n}": next((round(at, 1) for count, at in reached if count >= n), None) for n in (438, 566, 582)
    }
    return {
        "seed": seed,
        "vectors": len(found),
        "verdict": score.value,
        **times,
        "run_s": score.parts["run_s"],
        "check_s": score.parts["check_s"],
    }, found


def exactly(points: list[list[int]]) -> dict[str, Any]:
    """The condition in Python's integers, pair by pair."""
    started = time.perf_counter()
    longest = max(sum(x * x for x in p) for p in points)
    nearest = min(sum((x - y) ** 2 for x, y in zip(p, q)) for i, p in enumerate(points) for q in points[:i])
    return {
        "min_squared_distance": nearest,
        "max_squared_norm": longest,
        "seconds": round(time.perf_counter() - started, 2),
    }


def main() -> None:
    """Search and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--starts", type=int, default=8, help="local searches of a seed")
    parser.add_argument("--seconds", type=float, default=300.0, help="most time for a seed")
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()
    ctx = BuildContext(config=None, registry=Registry(disabled=()), seed=0)  # pyright: ignore[reportArgumentType]
    verifier = KissingConfig().build(ctx)
    try:
        rows = [one(verifier, seed, args.starts, args.seconds) for seed in range(args.seeds)]
        walls = verifier.sandbox.isolation
    finally:
        verifier.close()
    best = max(rows, key=lambda row: row[0]["vectors"])[1]
    found = {
        "candidates": len(shell(11, 4)),
        "starts": args.starts,
        "isolation": walls,
        "load": os.getloadavg(),
        "best": len(best),
        "exactly": exactly(best),
        "seeds": [row for row, _ in rows],
    }
    text = json.dumps(found, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
