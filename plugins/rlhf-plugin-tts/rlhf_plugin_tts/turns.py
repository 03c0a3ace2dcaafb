"""A speech prompt's turns: what is said, and the voice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.data import DatasetError


def said_and_described(messages: Sequence[Mapping[str, Any]]) -> tuple[str, str | None]:
    """What is said, and the description of the voice, None where there is none."""
    texts = [m for m in messages if m.get("role") == "user"]
    described = [m for m in messages if m.get("role") == "system"]
    if len(texts) != 1 or len(described) > 1 or len(texts) + len(described) != len(messages):
        raise DatasetError(
            f"a speech prompt is one user turn (what is said) and at most one system turn (the voice), "
            f"here: {', '.join(str(m.get('role')) for m in messages)}",
            fix="leave the other turns out",
        )
    text = str(texts[0]["content"])
    if not any(c.isalnum() for c in text):
        raise DatasetError("there is nothing to say", where=f"prompt {text[:40]!r}", fix="remove that row")
    if described and not str(described[0]["content"]).strip():
        raise DatasetError(
            "the description of the voice is empty", where=f"prompt {text[:40]!r}", fix="leave the system turn out"
        )
    return text, str(described[0]["content"]) if described else None
