"""Rows of ``trace.jsonl``: every prompt through the stages of an on-policy step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from rlhf_core.training.rollout_batch import RolloutGroup
from rlhf_core.types.rollouts import PromptGroup, Rollout, Score
from rlhf_core.types.turns import Turn, TurnStatus


def prompt_rows(
    groups: Sequence[PromptGroup],
    rollouts: Sequence[Rollout],
    scores: Sequence[Score],
    advantages: Sequence[Any],
    full: int,
    tokens: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """One row per prompt: its completions with scores and advantages; tokens for the first ``full`` prompts.

    Args:
        groups: the step's prompts.
        rollouts: group by group.
        scores: one per rollout.
        advantages: a number, an array ``[T]`` or None per rollout.
        full: prompts whose tokens are kept.
        tokens: of their completions by name, what the update saw of each token, as lists ``[T]``.
    """
    rows: list[dict[str, Any]] = []
    start = 0
    for n, group in enumerate(groups):
        places = range(start, start + group.group_size)
        start += group.group_size
        rows.append(
            {
                "event": "prompt",
                "prompt_id": group.prompt.id,
                "source": group.prompt.source,
                "prompt": group.prompt.text,
                **({"prompt_ids": list(group.token_ids)} if n < full else {}),
                **({"media": [asdict(media) for media in group.prompt.media]} if group.prompt.media else {}),
                **({"messages": messages_of(group)} if any(rollouts[i].media for i in places) else {}),
                "completions": [_completion(rollouts[i], scores[i], advantages[i], n < full, tokens) for i in places],
            }
        )
    return rows


def messages_of(group: PromptGroup) -> list[dict[str, Any]]:
    """The whole conversation: what completions with sounds were asked is not all in its last turn."""
    return [dict(message) for message in group.prompt.messages]


def set_aside_rows(groups: Sequence[RolloutGroup]) -> list[dict[str, Any]]:
    """Rows of groups that are not trained on, without tokens."""
    rollouts = [r for g in groups for r in g.rollouts]
    scores = [s for g in groups for s in g.scores]
    rows = prompt_rows([g.group for g in groups], rollouts, scores, [None] * len(rollouts), 0)
    return [{**row, "event": "set_aside"} for row in rows]


def turn_row(turn: Turn) -> dict[str, Any]:
    """A turn as JSON; what is as usual is left out."""
    row: dict[str, Any] = {"span": list(turn.span), "role": turn.role, "message": dict(turn.message)}
    if turn.status is not TurnStatus.OK:
        row["status"] = turn.status.value
    if turn.score is not None:
        row["score"] = turn.score
    return {**row, "seconds": round(turn.seconds, 4)} if turn.seconds else row


def _completion(
    rollout: Rollout, score: Score, advantage: Any, full: bool, tokens: Mapping[str, Mapping[str, Any]] | None
) -> dict[str, Any]:
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
    if rollout.media:
        row["media"] = [asdict(media) for media in rollout.media]
    if rollout.info:
        row["info"] = dict(rollout.info)
    if rollout.versions:
        row["versions"] = [[*span.span, span.version] for span in rollout.versions]
    if rollout.segments:
        row["segments"] = [[*segment.span, segment.role] for segment in rollout.segments]
        if full and any(segment.prompt_ids for segment in rollout.segments):
            row["contexts"] = [None if s.prompt_ids is None else list(s.prompt_ids) for s in rollout.segments]
    if rollout.turns:
        row["turns"] = [turn_row(turn) for turn in rollout.turns]
    if full:
        row |= {"completion_ids": list(rollout.completion_ids), "logprobs": rollout.logprobs_T}
        if rollout.mask_T is not None:
            row["mask"] = [int(chosen) for chosen in rollout.mask_T]
        if isinstance(advantage, np.ndarray) and advantage.ndim:
            row["advantages"] = np.round(np.asarray(advantage, np.float64), 5)
        row |= (tokens or {}).get(f"{rollout.prompt_id}#{rollout.group_index}", {})
    return row
