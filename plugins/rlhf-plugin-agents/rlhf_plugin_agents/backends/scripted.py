"""Replies that functions write: oracles and always-wrong models of a suite's tasks, without a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlhf_core.api import Message, message_text
from rlhf_plugin_agents.backends.base import BackendFault, ModelReply, ModelRequest

Script = Callable[[ModelRequest], Message]


class ScriptedBackend:
    """Answers each task by its script.

    Args:
        scripts: task -> what answers its requests.
        takes_tools: False makes agents write calls as text.
    """

    def __init__(self, scripts: Mapping[str, Script], name: str = "scripted", *, takes_tools: bool = True) -> None:
        self.scripts, self.name, self.takes_tools = scripts, name, takes_tools

    def complete(self, request: ModelRequest) -> ModelReply:
        """The script's turn; tokens are words, so that figures of scripts are at hand without a tokenizer."""
        script = self.scripts.get(request.key)
        if script is None:
            raise BackendFault(f"no script for task '{request.key}'")
        message = script(request)
        read = sum(len(message_text(m).split()) for m in request.messages)
        return ModelReply(message, read, len(message_text(message).split()))

    def close(self) -> None:
        """Nothing is held."""
