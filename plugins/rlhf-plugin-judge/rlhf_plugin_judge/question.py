"""A judge's request as the Messages API takes it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlhf_core.data import message_text
from rlhf_core.rewards import JudgeRequest
from rlhf_plugin_judge.prices import most, most_tokens
from rlhf_plugin_judge.replies import ToolRequest, digest
from rlhf_plugin_judge.texts import TOOLS_ADD, clean, definitions, turns_of

if TYPE_CHECKING:
    from rlhf_plugin_judge.config import AnthropicConfig


@dataclass(frozen=True)
class Question:
    """What is sent, the hash it is kept under, and what it can cost at most."""

    digest: str
    params: dict[str, Any]
    """Arguments of ``messages.create`` but for the temperature, which its signature no longer has."""
    temperature: float | None
    most: int
    too_long: bool = False
    """Its price is not known: longer prompts may cost more."""
    tools: bool = False

    @property
    def headers(self) -> dict[str, str]:
        """Tells questions of equal words apart in a service's own log: their seeds or tasks differ."""
        return {"x-question": self.digest[:16]}

    @property
    def batch_params(self) -> dict[str, Any]:
        return self.params if self.temperature is None else {**self.params, "temperature": self.temperature}


def question_of(request: JudgeRequest, config: AnthropicConfig) -> Question:
    system_texts = [request.system, *(message_text(m) for m in request.messages if m["role"] == "system")]
    system = "\n\n".join(clean(text) for text in system_texts if text)
    calling = isinstance(request, ToolRequest)
    turns = turns_of(request.messages) if calling else texts_of(request)
    temperature = request.temperature if config.takes_temperature else None
    params: dict[str, Any] = {"model": config.model, "max_tokens": request.max_tokens, "messages": turns}
    if calling:
        params |= definitions(request.tools, request.messages)
    name = digest(
        {**params, "system": system, "temperature": temperature, "seed": request.seed, "service": config.address}
    )
    if system:
        block: dict[str, Any] = {"type": "text", "text": system}
        params["system"] = [{**block, "cache_control": {"type": "ephemeral"}} if config.prompt_caching else block]
    share = config.batch_price if config.batches else 1.0
    texts = [system, *(t["content"] if isinstance(t["content"], str) else json.dumps(t["content"]) for t in turns)]
    if "tools" in params:
        texts += [json.dumps(params["tools"]), " " * TOOLS_ADD]
    limit, longest = most(config.price, texts, request.max_tokens, share), config.price.longest
    too_long = longest is not None and most_tokens(texts) > longest
    return Question(name, params, temperature, limit, too_long, calling)


def texts_of(request: JudgeRequest) -> list[dict[str, Any]]:
    return [
        {"role": "assistant" if m["role"] == "assistant" else "user", "content": clean(message_text(m))}
        for m in request.messages
        if m["role"] != "system"
    ]
