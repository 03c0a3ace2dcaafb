"""A conversation with tools as a row in OpenAI's form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.types.messages import Message, Tool, content_of


def openai_row(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> dict[str, Any]:
    """A row that reads back as the same conversation: arguments as JSON text, ``content`` null beside calls alone."""
    return {"messages": [_openai(m) for m in messages], **({"tools": [_plain(t) for t in tools]} if tools else {})}


def _openai(message: Message) -> dict[str, Any]:
    row = _plain(message)
    if not message.get("tool_calls"):
        return row
    row["content"] = content_of(message) or None
    for call in row["tool_calls"]:
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return row


def _plain(value: Any) -> Any:
    """The value in dicts and lists that may be changed."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
