"""Searches and a construction that need no model, judged by the same verifier as a model's program."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from rlhf_core.config import ConfigError
from rlhf_core.rewards import Sample, Score
from rlhf_plugin_discover.kissing import construction
from rlhf_plugin_discover.kissing.search import search
from rlhf_plugin_discover.report import NO_MODEL, page
from rlhf_plugin_discover.tasks import Task

Say = Callable[[str], None]


def run_baseline(task: Task, verifier: Any, seconds: float, seed: int, say: Say) -> tuple[str, dict[str, Any]]:
    """Search, and let the verifier judge a program that states the result."""
    if task.settings.baseline != "kissing":
        raise ConfigError(
            f"task '{task.name}' has no baseline", fix="rlhf discover kissing --baseline, or name a --judge"
        )
    dimensions = getattr(task.verifier, "dimensions", 11)
    started = time.perf_counter()

    def improved(count: int, seconds: float) -> None:
        if count % 10 == 0:
            say(f"{count} vectors after {seconds:.1f} s")

    known = dimensions == construction.DIMENSIONS
    try:
        points = construction.points() if known else search(dimensions, seconds=seconds, seed=seed, improved=improved)
    except ValueError as error:
        raise ConfigError(str(error), fix="search fewer --set verifier.dimensions, or name a --judge") from error
    searched = time.perf_counter() - started
    code = program_of(points)
    started = time.perf_counter()
    score: Score = verifier.score([Sample(task.prompt, task.answer(code))])[0]
    return code, {
        "task": task.name,
        "method": CONSTRUCTION if known else SEARCH,
        "best": score.value,
        "status": score.status.value,
        "detail": score.detail,
        "valid": bool(score.parts.get("valid")),
        "search_s": round(searched, 2),
        "verdict_s": round(time.perf_counter() - started, 3),
        "run_s": score.parts.get("run_s"),
        "check_s": score.parts.get("check_s"),
        "seed": seed,
    }


def baseline_report(task: Task, result: dict[str, Any]) -> str:
    """The same sections as of a model's search."""
    summary = {**result, "best": result["best"] if result["valid"] else None, "unit": task.settings.unit}
    return page(
        {**summary, "ended": "its time or its steps were used up"},
        methodology=f"Without a model, seed {result['seed']}: {result['method']}. It took {result['search_s']} s.",
        prompts="None: no model was asked.",
        result=result["detail"] or f"The program ran in {result['run_s']} s and was checked in {result['check_s']} s.",
        reflection=NO_MODEL,
    )


SEARCH = (
    "local search for the largest set of pairwise compatible vectors among the integer vectors of squared norm 4, two "
    "being compatible if their inner product is at most 2"
)


CONSTRUCTION = (
    "two orbits of the group PSU(4, 2) and their images (Ganzhinov, Highly symmetric lines, 2022), a coordinate [a, b] "
    "being a + b sqrt(3)"
)


def program_of(points: Sequence[Sequence[Any]]) -> str:
    """A program that leaves ``points`` behind, one vector a line."""
    rows = "".join(f"    {row},\n" for row in points)
    return f"points = [\n{rows}]\n"
