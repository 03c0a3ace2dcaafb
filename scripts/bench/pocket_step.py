"""A GRPO step of the pocket model, 64 prompts x 8 completions of 8 to 48 tokens, ours against TRL's GRPOTrainer.

    python -m scripts.bench pocket_step

Tokens per second of rollout and update; TRL's rollout is transformers' ``generate``. As ``step_time`` otherwise.
"""

from __future__ import annotations

from typing import Any

from scripts.bench.step_time import THREADS, measure


def run(runs: int = 5) -> dict[str, Any]:
    return measure("pocket", "pocket", runs, THREADS)
