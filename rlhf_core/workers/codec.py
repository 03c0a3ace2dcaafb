"""Samples and scores as JSON lines, so that nothing unpickled comes back from a worker."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from rlhf_core.types.messages import Turn, TurnStatus
from rlhf_core.types.rollouts import FinishReason, Media, Prompt, Sample, Score, ScoreStatus

DETAIL_CHARACTERS = 500


def pack(message: Any) -> bytes:
    """One JSON line."""
    return json.dumps(message, ensure_ascii=True).encode() + b"\n"


def sample_to_json(sample: Sample) -> dict[str, Any]:
    """Everything a verifier may look at."""
    prompt = sample.prompt
    environment = sample.environment
    further = {
        "media": [asdict(media) for media in sample.media],
        "prompt_media": [asdict(media) for media in prompt.media],
        "tools": [dict(tool) for tool in prompt.tools],
        "trajectory": [turn_to_json(turn) for turn in sample.trajectory],
        "environment": None if environment is None else score_to_json(environment),
    }
    return {
        "id": prompt.id,
        "messages": [dict(m) for m in prompt.messages],
        "answer": prompt.answer,
        "source": prompt.source,
        "meta": dict(prompt.meta),
        "completion": sample.completion,
        "finish_reason": sample.finish_reason.value,
        **{name: rows for name, rows in further.items() if rows},
    }


def sample_from_json(data: dict[str, Any]) -> Sample:
    """Undo :func:`sample_to_json`."""
    prompt = Prompt(
        data["id"],
        tuple(data["messages"]),
        data["answer"],
        data["source"],
        data["meta"],
        tuple(Media(**row) for row in data.get("prompt_media", ())),
        tuple(data.get("tools", ())),
    )
    finish_reason = FinishReason(data["finish_reason"])
    environment = data.get("environment")
    return Sample(
        prompt,
        data["completion"],
        finish_reason,
        tuple(Media(**row) for row in data.get("media", ())),
        tuple(turn_from_json(row) for row in data.get("trajectory", ())),
        None if environment is None else score_from_json(environment),
    )


def turn_to_json(turn: Turn) -> dict[str, Any]:
    """A turn of an episode."""
    return {**{f.name: getattr(turn, f.name) for f in fields(turn)}, "status": turn.status.value}


def turn_from_json(row: Mapping[str, Any]) -> Turn:
    """Undo :func:`turn_to_json`."""
    start, end = row["span"]
    fields: dict[str, Any] = {**row, "span": (start, end), "status": TurnStatus(row["status"])}
    return Turn(**fields)


def score_to_json(score: object) -> dict[str, Any]:
    """A verifier's answer; anything but a :class:`Score` with finite parts becomes status ``error``."""
    if not isinstance(score, Score):
        return error_score(f"the verifier returned {type(score).__name__}, expected Score")
    parts = {str(name): float(value) for name, value in score.parts.items()}
    bad = next((name for name, value in parts.items() if not math.isfinite(value)), None)
    if bad is not None:
        return error_score(f"part '{bad}' of the verdict is {parts[bad]}")
    value = None if score.value is None else float(score.value)
    return {"value": value, "parts": parts, "status": score.status.value, "detail": score.detail[:DETAIL_CHARACTERS]}


def error_score(detail: str) -> dict[str, Any]:
    """A missing verdict as JSON."""
    return {"value": None, "parts": {}, "status": ScoreStatus.ERROR.value, "detail": detail[:DETAIL_CHARACTERS]}


def score_from_json(data: dict[str, Any]) -> Score:
    """Undo :func:`score_to_json`."""
    return Score(data["value"], data["parts"], ScoreStatus(data["status"]), data["detail"])
