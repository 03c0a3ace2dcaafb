"""The turns of an episode as the page shows them: who, what was called, what came of it, how long it took."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

TURN_TEXT = 8000
"""Characters of one turn; what comes after them is counted. The trace has them all."""


def turns_of(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Turns of a completion: ``span``, ``role``, ``text``, ``calls`` (name, JSON), ``name``, ``status``, ``score``,
    ``seconds``."""
    return [_turn(row) for row in rows]


def _turn(row: Mapping[str, Any]) -> dict[str, Any]:
    message = row["message"]
    text = message.get("content")
    made: dict[str, Any] = {
        "span": row["span"],
        "role": row["role"],
        "text": _cut(text if isinstance(text, str) else ""),
    }
    calls = message.get("tool_calls") if isinstance(message.get("tool_calls"), list) else []
    named = [call.get("function") for call in calls if isinstance(call, Mapping)]
    if named := [one for one in named if isinstance(one, Mapping)]:
        texts = [json.dumps(one.get("arguments"), ensure_ascii=False) for one in named]
        made["calls"] = [[str(one.get("name")), _cut(text)] for one, text in zip(named, texts)]
    if isinstance(message.get("name"), str):
        made["name"] = message["name"]
    return made | {key: row[key] for key in ("status", "score", "seconds") if row.get(key) is not None}


def _cut(text: str) -> str:
    more = len(text) - TURN_TEXT
    return text if more <= 0 else f"{text[:TURN_TEXT]} … ({more} more characters in the run's files)"


def is_turn(value: Any) -> bool:
    if not isinstance(value, Mapping) or not isinstance(value.get("message"), Mapping):
        return False
    span, role = value.get("span"), value.get("role")
    has_span = isinstance(span, list) and len(span) == 2 and all(isinstance(n, int) and 0 <= n < 2**53 for n in span)
    return has_span and isinstance(role, str)
