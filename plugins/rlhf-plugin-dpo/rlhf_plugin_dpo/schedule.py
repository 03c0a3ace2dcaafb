"""Beta over the run."""

from __future__ import annotations

import math

from rlhf_plugin_dpo.config import BetaSchedule


def beta_scale(schedule: BetaSchedule, step: int, total: int) -> float | None:
    """Factor on beta in a step: 1 in the first, ``schedule.end`` in the last; None if it never changes."""
    if schedule.kind == "constant":
        return None
    progress = min(1.0, max(0, step - 1) / max(1, total - 1))
    if schedule.kind == "cosine":
        progress = 0.5 * (1 - math.cos(math.pi * progress))
    return 1 + (schedule.end - 1) * progress
