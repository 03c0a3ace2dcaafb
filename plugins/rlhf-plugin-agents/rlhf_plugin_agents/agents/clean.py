"""What models and tools write, as it can be kept and sent again: no half characters, nothing nested without end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlhf_plugin_agents.backends.base import ModelReply

DEEPEST = 64
"""Levels of a JSON value; readers of deeper ones, ours and others', end in their own recursion."""
TOO_DEEP = f"it is nested more than {DEEPEST} levels deep"
HALF = "it holds half of a character (a lone surrogate)"


def first_value(text: str) -> Any:
    """The JSON value that a text begins with."""
    try:
        value, _ = json.JSONDecoder().raw_decode(text)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    if fault := fault_in(value):
        raise ValueError(fault)
    return value


def fault_in(value: Any) -> str:
    """Why a JSON value cannot be kept; "" if it can."""
    level = [value]
    for _ in range(DEEPEST):
        inner: list[Any] = []
        for one in level:
            inner += one.values() if isinstance(one, Mapping) else one if isinstance(one, list | tuple) else ()
        level = inner
    if level:
        return TOO_DEEP
    return "" if whole(text := json.dumps(value, ensure_ascii=False, default=str)) == text else HALF


def whole(text: str) -> str:
    """The text with a question mark for each half of a character."""
    return text.encode("utf-8", "replace").decode()


def kept(reply: ModelReply) -> ModelReply:
    """A reply as it can be kept; calls whose arguments cannot be are empty, each with an error."""
    message, errors = dict(reply.message), list(reply.errors)
    if isinstance(message.get("content"), str):
        message["content"] = whole(message["content"])
    calls: list[dict[str, Any]] = []
    for call in message.get("tool_calls") or ():
        function, name = call["function"], whole(str(call["function"]["name"]))
        fault = fault_in(function["arguments"])
        if fault:
            errors.append({"id": str(call.get("id") or ""), "name": name, "error": f"the arguments: {fault}"})
        calls.append({**call, "function": {"name": name, "arguments": {} if fault else function["arguments"]}})
    if calls:
        message["tool_calls"] = calls
    return replace(reply, message=message, errors=errors)
