"""Conversations with tools as rows of other toolkits: what the reader reads, written again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from rlhf_core.data import Message, Tool
from rlhf_core.data.conversations import openai_row
from rlhf_core.types.messages import calls_of, content_of

FROM = {"user": "human", "assistant": "gpt", "system": "system", "tool": "observation"}
"""Our roles -> ShareGPT's."""


def to_row(
    messages: Sequence[Message], tools: Sequence[Tool] = (), form: Literal["openai", "sharegpt", "hermes"] = "openai"
) -> dict[str, Any]:
    """A row that reads back as the same conversation with the same tools.

    ``openai``: ``messages``, arguments as JSON text; ``sharegpt``: ``conversations`` with ``function_call`` and
    ``observation``; ``hermes``: ``conversations`` with ``<tool_call>`` and ``<tool_response>``. ShareGPT and Hermes
    have no place for the ids of calls, and ShareGPT none for text beside a call: it becomes a turn of its own, and
    reasoning stands in the text, between ``<think>`` tags.
    """
    row = openai_row(messages, tools)
    if form == "openai":
        return row
    offered = {"tools": json.dumps(row["tools"], ensure_ascii=False)} if tools else {}
    turns = [turn for m in messages for turn in (_hermes(m) if form == "hermes" else _sharegpt(m))]
    return {"conversations": turns, **offered}


def _call_rows(message: Message) -> list[str]:
    functions = ({"name": call.name, "arguments": call.arguments} for call in calls_of(message))
    return [json.dumps(function, ensure_ascii=False) for function in functions]


def _text(message: Message) -> str:
    reasoning = message.get("reasoning")
    return f"<think>\n{reasoning}\n</think>\n\n{content_of(message)}" if reasoning else content_of(message)


def _sharegpt(message: Message) -> list[dict[str, Any]]:
    rows, text = _call_rows(message), _text(message)
    turns = [{"from": FROM[message["role"]], "value": text}] if text or not rows else []
    if rows:
        turns.append({"from": "function_call", "value": rows[0] if len(rows) == 1 else f"[{', '.join(rows)}]"})
    return turns


def _hermes(message: Message) -> list[dict[str, Any]]:
    text = _text(message)
    if message["role"] == "tool":
        return [{"from": "tool", "value": f"<tool_response>\n{text}\n</tool_response>"}]
    calls = [f"<tool_call>\n{row}\n</tool_call>" for row in _call_rows(message)]
    return [{"from": FROM[message["role"]], "value": "\n".join([*([text] if text or not calls else []), *calls])}]
