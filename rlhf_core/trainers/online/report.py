"""What an on-policy run leaves behind: trace rows and the summary."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlhf_core.functional.comparison import win_rate
from rlhf_core.runs.jsonl import read_jsonl
from rlhf_core.trainers.common.metrics import mean
from rlhf_core.trainers.common.policy_evaluator import Evaluation
from rlhf_core.types import PromptGroup, Rollout, Score

if TYPE_CHECKING:
    from rlhf_core.trainers.online.trainer import OnlineTrainer


def step_trace(
    groups: Sequence[PromptGroup],
    rollouts: Sequence[Rollout],
    scores: Sequence[Score],
    advantages: Sequence[Any],
    metrics: Mapping[str, float],
    full: int,
) -> list[dict[str, Any]]:
    """One row per prompt (its completions through all rooms; tokens for the first ``full``) and one for the update."""
    rows: list[dict[str, Any]] = []
    at = 0
    for n, group in enumerate(groups):
        span = range(at, at + group.group_size)
        at += group.group_size
        rows.append(
            {
                "event": "prompt",
                "prompt_id": group.prompt.id,
                "source": group.prompt.source,
                "prompt": group.prompt.text,
                **({"prompt_ids": list(group.token_ids)} if n < full else {}),
                "completions": [_completion(rollouts[i], scores[i], advantages[i], n < full) for i in span],
            }
        )
    return [*rows, {"event": "update", "metrics": dict(metrics)}]


def _completion(rollout: Rollout, score: Score, advantage: Any, full: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "text": rollout.text,
        "finish_reason": rollout.finish_reason.value,
        "tokens": len(rollout.completion_ids),
        "policy_version": rollout.policy_version,
        "seed": rollout.seed,
        "score": score.value,
        "status": score.status.value,
        "parts": dict(score.parts),
        "advantage": None if advantage is None else float(np.mean(advantage)),
    }
    if score.detail:
        row["detail"] = score.detail
    if full:
        row |= {"completion_ids": list(rollout.completion_ids), "logprobs": rollout.logprobs_T}
    return row


def online_summary(trainer: OnlineTrainer, after: Evaluation | None, reason: str | None) -> dict[str, Any]:
    """Everything ``summary.json`` promises; values that carry time are only in ``seconds`` and ``time``."""
    session, config = trainer.session, trainer.config
    steps = [r for r in read_jsonl(session.dir.path / "metrics.jsonl") if "tokens_generated" in r]
    summary: dict[str, Any] = {
        "status": "stopped" if reason is not None else "completed",
        "stop_reason": reason,
        "algo": config.name,
        "steps": len(steps),
        "updates": trainer.house.updater.version,
        "seed": trainer.house.seed,
        "seconds": round(time.monotonic() - session.started, 3),
        "tokens_generated": int(sum(r["tokens_generated"] for r in steps)),
        **_ends(steps, "reward/mean", "reward"),
        **_ends(steps, "completion_length/mean", "completion_length"),
        "kl_last": _last(steps, "kl"),
        "entropy_last": _last(steps, "entropy"),
        "evaluation_before": _metrics(trainer.before),
        "evaluation_after": _metrics(after),
        "final_model": "final",
        "reports": dict(trainer.house.ctx.report),
    }
    return {**summary, **_gold(trainer.before, after), **_examples(trainer, after)}


def _metrics(evaluation: Evaluation | None) -> dict[str, float] | None:
    return dict(evaluation.metrics) if evaluation else None


def _ends(rows: Sequence[Mapping[str, Any]], key: str, name: str) -> dict[str, float | None]:
    values = [float(r[key]) for r in rows if r.get(key) is not None]
    return {
        f"{name}_first": mean(values[:5]) if values else None,
        f"{name}_last": mean(values[-5:]) if values else None,
    }


def _last(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    return next((r[key] for r in reversed(rows) if r.get(key) is not None), None)


def _gold(before: Evaluation | None, after: Evaluation | None) -> dict[str, Any]:
    if not before or not after or before.golds is None or after.golds is None:
        return {}
    wins = win_rate(after.golds, before.golds)
    return {
        "gold_win_rate": wins.rate,
        "gold_win_rate_interval": [wins.low, wins.high],
        "gold_win_rate_prompts": wins.n,
    }


def _examples(trainer: OnlineTrainer, after: Evaluation | None) -> dict[str, Any]:
    if not trainer.before or not after:
        return {}
    rows = zip(trainer.house.evaluator.groups, trainer.before.texts, after.texts)
    return {"examples": [{"prompt": g.prompt.text, "before": b, "after": a} for g, b, a in list(rows)[:3]]}
