"""A request as a chat completion."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlhf_core.data import Message, json_values, message_text
from rlhf_core.rewards import JudgeRequest
from rlhf_plugin_judge.prices import most, most_tokens
from rlhf_plugin_judge.question import Question
from rlhf_plugin_judge.replies import ToolRequest, digest
from rlhf_plugin_judge.texts import TOOLS_ADD, clean

if TYPE_CHECKING:
    from rlhf_plugin_judge.openai_config import OpenAIConfig


def question_of(request: JudgeRequest, config: OpenAIConfig) -> Question:
    """Write a request down; system turns join the system text."""
    calling = isinstance(request, ToolRequest)
    texts = [request.system, *(message_text(m) for m in request.messages if m["role"] == "system")]
    system = "\n\n".join(clean(text) for text in texts if text)
    turns = [_turn(m, calling) for m in request.messages if m["role"] != "system"]
    params: dict[str, Any] = {
        "model": config.model,
        "messages": [*([{"role": "system", "content": system}] if system else []), *turns],
        config.limit: request.max_tokens,
        **({"temperature": request.temperature} if config.send_temperature else {}),
        **({"seed": request.seed % 2**31} if config.send_seed else {}),
    }
    if calling and request.tools:
        params["tools"] = [json_values(t) for t in request.tools]
    name = digest(
        {**params, "seed": request.seed, "more": config.extra_body, "service": config.address, "form": "chat"}
    )
    written = [json.dumps(m) for m in params["messages"]]
    written += [json.dumps(params["tools"]), " " * TOOLS_ADD] if "tools" in params else []
    if config.extra_body:
        params["extra_body"] = dict(config.extra_body)
    price = config.price
    too_long = price.longest is not None and most_tokens(written) > price.longest
    return Question(name, params, None, most(price, written, request.max_tokens), too_long, calling)


def _turn(message: Message, calling: bool) -> dict[str, Any]:
    text = clean(message_text(message))
    if not calling:
        return {"role": "assistant" if message["role"] == "assistant" else "user", "content": text}
    if message["role"] == "tool":
        return {"role": "tool", "tool_call_id": str(message.get("tool_call_id") or ""), "content": text}
    calls = _calls(message.get("tool_calls") or ())
    return {"role": message["role"], "content": text, **({"tool_calls": calls} if calls else {})}


def _calls(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "id": str(c["id"]),
            "type": "function",
            "function": {
                "name": c["function"]["name"],
                "arguments": json.dumps(json_values(c["function"]["arguments"])),
            },
        }
        for c in calls
    ]
