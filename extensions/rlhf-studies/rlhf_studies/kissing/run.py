"""A search a seed, the verifier's verdict on it, and an exact check."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.cli import context_of, open_registry
from rlhf_core.data import Prompt
from rlhf_core.rewards import Sample
from rlhf_plugin_discover.baseline import program_of
from rlhf_plugin_discover.config import KissingConfig as VerifierConfig
from rlhf_plugin_discover.kissing.search import search, shell
from rlhf_studies.kissing.config import KissingConfig
from rlhf_study.study import Study
from rlhf_study.tables import markdown

DIMENSIONS = 11
MILESTONES = (438, 566, 582)
"""438 is the best laminated lattice's number."""


class Kissing(Study[KissingConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        reached: list[tuple[int, float]] = []
        points = search(
            DIMENSIONS,
            seed=seed,
            starts=self.config.starts,
            seconds=self.config.seconds,
            improved=lambda count, at: reached.append((count, at)),
        )
        times = {
            f"seconds_to_{n}": next((round(at, 1) for count, at in reached if count >= n), None) for n in MILESTONES
        }
        return {
            "candidates": len(shell(DIMENSIONS, 4)),
            "vectors": len(points),
            **times,
            **verdict(points),
            "exactly": exactly(points),
        }

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        keys = ("vectors", *(f"seconds_to_{n}" for n in MILESTONES), "verdict", "run_s", "check_s")
        rows = [(seed, *("-" if row[key] is None else row[key] for key in keys)) for seed, row in results.items()]
        return markdown(("seed", *(key.replace("_", " ") for key in keys)), rows)


def verdict(points: list[list[int]]) -> dict[str, Any]:
    verifier = VerifierConfig().build(context_of(open_registry()))
    prompt = Prompt("kissing", ({"role": "user", "content": ""},))
    try:
        score = verifier.verify(Sample(prompt, f"```python\n{program_of(points)}```\n"))
        isolation = verifier.sandbox.isolation
    finally:
        verifier.close()
    return {"verdict": score.value, **{key: score.parts[key] for key in ("run_s", "check_s")}, "isolation": isolation}


def exactly(points: list[list[int]]) -> dict[str, Any]:
    started = time.perf_counter()
    longest = max(sum(x * x for x in p) for p in points)
    nearest = min(sum((x - y) ** 2 for x, y in zip(p, q)) for i, p in enumerate(points) for q in points[:i])
    seconds = round(time.perf_counter() - started, 2)
    return {"min_squared_distance": nearest, "max_squared_norm": longest, "seconds": seconds}
