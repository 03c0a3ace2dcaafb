"""Texts as the Messages API and the tokenizers take them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from rlhf_core.data import Message, Tool, json_values, message_text
from rlhf_core.rewards import Sample

log = logging.getLogger("rlhf.judge")


def clean(text: str) -> str:
    """A text that can be written as UTF-8: surrogate pairs joined, lone ones replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def read_completion(sample: Sample) -> str:
    """The completion as a judge reads it; says once that the sound of one that is speech is ignored."""
    if sample.media:
        _say_unheard(sample.media[0].kind)
    return sample.completion


@cache
def _say_unheard(kind: str) -> None:
    log.warning(
        "judges read text: of a completion that is %s they see the names of its codes, so that their answers say "
        "nothing of it; for speech take audio rewards (rlhf-plugin-tts)",
        kind,
    )


TOOLS_ADD = 1024
"""More tokens than the service's own instructions about tools take, which are billed with the request."""
EMPTY = "(nothing)"
"""Stands for an empty text, which the service refuses."""


def turns_of(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The turns but for the system's; results join the user's turn after their calls."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "system":
            continue
        role = "assistant" if message["role"] == "assistant" else "user"
        if not turns or turns[-1]["role"] != role:
            turns.append({"role": role, "content": []})
        turns[-1]["content"].extend(_blocks(message))
    for turn in turns:
        # Results must come first in a turn.
        turn["content"].sort(key=lambda block: block["type"] != "tool_result")
        turn["content"] = turn["content"] or [{"type": "text", "text": EMPTY}]
    return turns


def _blocks(message: Message) -> list[dict[str, Any]]:
    text = clean(message_text(message)).strip()
    if message["role"] == "tool":
        block = {"type": "tool_result", "tool_use_id": str(message.get("tool_call_id") or ""), "content": text or EMPTY}
        return [block | ({"is_error": True} if text.startswith("Error: ") else {})]
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    for call in message.get("tool_calls") or ():
        name, arguments = call["function"]["name"], json_values(call["function"]["arguments"])
        blocks.append({"type": "tool_use", "id": str(call["id"]), "name": name, "input": arguments})
    return blocks


def definitions(tools: Sequence[Tool], messages: Sequence[Message]) -> dict[str, Any]:
    """``tools``, and ``tool_choice`` where none may be called: a conversation with calls needs definitions, too."""
    if tools:
        return {"tools": [_definition(t["function"]) for t in tools]}
    called = dict.fromkeys(c["function"]["name"] for m in messages for c in m.get("tool_calls") or ())
    if not called:
        return {}
    past = [{"name": n, "description": "Cannot be called now.", "input_schema": {"type": "object"}} for n in called]
    return {"tools": past, "tool_choice": {"type": "none"}}


def _definition(function: Mapping[str, Any]) -> dict[str, Any]:
    description = str(function.get("description") or "")
    return {
        "name": function["name"],
        **({"description": description} if description else {}),
        "input_schema": json_values(function["parameters"]),
    }
