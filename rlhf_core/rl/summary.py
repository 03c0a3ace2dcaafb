"""The summary of a run that samples from its policy."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.runs.session import RunSession
from rlhf_core.runs.statistics import mean
from rlhf_core.training.policy_evaluator import Evaluation, before_and_after
from rlhf_core.types.rollouts import PromptGroup


def summarize_online_run(
    session: RunSession,
    *,
    algo: str,
    updates: int,
    seed: int,
    groups: Sequence[PromptGroup],
    before: Evaluation | None,
    after: Evaluation | None,
    reports: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything ``summary.json`` promises; values that carry time are only in ``seconds`` and ``time``.

    Args:
        session: of the run that is over.
        algo: its algorithm.
        updates: optimizer updates made.
        seed: the run's.
        groups: held-out prompts, for the examples.
        before: evaluation before training.
        after: evaluation after it.
        reports: what components report.
    """
    reason = session.stop_reason()
    steps = [r for r in read_jsonl(session.dir.path / "metrics.jsonl") if "tokens_generated" in r]
    return {
        "status": "stopped" if reason is not None else "completed",
        "stop_reason": reason,
        "algo": algo,
        "steps": len(steps),
        "updates": updates,
        "seed": seed,
        "seconds": round(time.monotonic() - session.started, 3),
        "tokens_generated": int(sum(r["tokens_generated"] for r in steps)),
        **_first_and_last(steps, "reward/mean", "reward"),
        **_first_and_last(steps, "completion_length/mean", "completion_length"),
        "kl_last": _last(steps, "kl"),
        "entropy_last": _last(steps, "entropy"),
        "evaluation_before": dict(before.metrics) if before else None,
        "evaluation_after": dict(after.metrics) if after else None,
        "final_model": "final",
        "reports": dict(reports),
        **before_and_after(groups, before, after),
    }


def _first_and_last(rows: Sequence[Mapping[str, Any]], key: str, name: str) -> dict[str, float | None]:
    """Means over the first and the last five steps."""
    values = [float(r[key]) for r in rows if r.get(key) is not None]
    return {
        f"{name}_first": mean(values[:5]) if values else None,
        f"{name}_last": mean(values[-5:]) if values else None,
    }


def _last(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    return next((r[key] for r in reversed(rows) if r.get(key) is not None), None)
