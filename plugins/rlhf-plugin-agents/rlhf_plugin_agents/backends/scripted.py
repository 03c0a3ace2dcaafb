"""Replies that functions write: oracles and always-wrong models of a suite's tasks, without a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from rlhf_core.data import Message, message_text
from rlhf_plugin_agents.backends.base import BackendFault, ContextFull, ModelReply, ModelRequest

Script = Callable[[ModelRequest], Message]


class ScriptedBackend:
    """Answers each task by its script, which sees no more than ``context_words`` of a request."""

    name = "scripted"

    def __init__(
        self,
        scripts: Mapping[str, Script],
        *,
        takes_tools: bool = True,
        context_words: int | None = None,
        cut: Cut = "refuse",
    ) -> None:
        self.scripts, self.takes_tools = scripts, takes_tools
        self.context_words = context_words
        self.cut: Cut = cut

    def complete(self, request: ModelRequest) -> ModelReply:
        """The script's turn; tokens are words, so that figures of scripts are at hand without a tokenizer."""
        script = self.scripts.get(request.key)
        if script is None:
            raise BackendFault(f"no script for task '{request.key}'")
        if self.context_words is not None:
            request = seen(request, self.context_words, self.cut)
        message = script(request)
        return ModelReply(message, words_of(request), len(message_text(message).split()))

    def close(self) -> None:
        """Nothing is held."""


Cut = Literal["refuse", "oldest", "newest", "middle"]


def words_of(request: ModelRequest) -> int:
    """Words of all messages; the schemas of tools do not count."""
    return sum(len(message_text(m).split()) for m in request.messages)


def seen(request: ModelRequest, most: int, cut: Cut) -> ModelRequest:
    """The request as far as it fits: without its ``oldest``, its ``newest`` or its ``middle`` words."""
    size = words_of(request)
    if size <= most:
        return request
    if cut == "refuse":
        raise ContextFull(f"{size} words, and the model reads {most}")
    head = {"oldest": 0, "newest": most, "middle": (most + 1) // 2}[cut]
    visible = range(head), range(size - (most - head), size)
    messages: list[dict[str, Any]] = []
    first = 0
    for message in request.messages:
        words = message_text(message).split()
        left = [w for n, w in enumerate(words, start=first) if n in visible[0] or n in visible[1]]
        first += len(words)
        messages.append({**message, "content": " ".join(left)} if len(left) < len(words) else dict(message))
    return replace(request, messages=messages)
