"""Samples and scores as JSON lines, so that nothing unpickled comes back from a worker."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from rlhf_core.data import Media, Prompt
from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_core.rollouts import FinishReason, Turn, TurnStatus

DETAIL_CHARACTERS = 500


def pack(message: Any) -> bytes:
    """One JSON line."""
    return json.dumps(message, ensure_ascii=True).encode() + b"\n"


def sample_to_json(sample: Sample) -> dict[str, Any]:
    """Everything a verifier may look at."""
    return asdict(sample)


def sample_from_json(data: dict[str, Any]) -> Sample:
    """Undo :func:`sample_to_json`."""
    row, environment = data["prompt"], data["environment"]
    prompt: dict[str, Any] = {
        **row,
        **{name: tuple(row[name]) for name in ("messages", "tools")},
        "media": _media(row["media"]),
    }
    return Sample(
        Prompt(**prompt),
        data["completion"],
        FinishReason(data["finish_reason"]),
        _media(data["media"]),
        tuple(map(_turn, data["trajectory"])),
        None if environment is None else score_from_json(environment),
    )


def _media(rows: Iterable[Mapping[str, Any]]) -> tuple[Media, ...]:
    return tuple(Media(**row) for row in rows)


def _turn(row: Mapping[str, Any]) -> Turn:
    fields: dict[str, Any] = {**row, "span": tuple(row["span"]), "status": TurnStatus(row["status"])}
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
    if not isinstance(data["detail"], str):
        raise TypeError(f"detail {data['detail']!r:.40} is no text")
    return Score(data["value"], dict(data["parts"]), ScoreStatus(data["status"]), data["detail"])
