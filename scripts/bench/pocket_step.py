"""A GRPO step of the pocket model, ours against TRL's GRPOTrainer, as ``step_time`` otherwise."""

from __future__ import annotations

from typing import Any

from scripts.bench.step_time import measure


def run(runs: int = 5) -> dict[str, Any]:
    return measure("pocket", "pocket", runs, threads=2)
