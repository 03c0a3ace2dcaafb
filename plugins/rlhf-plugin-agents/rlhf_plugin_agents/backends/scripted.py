"""Replies that functions write: oracles and always-wrong models of a suite's tasks, without a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlhf_core.data import Message, message_text
from rlhf_plugin_agents.backends.base import BackendFault, ModelReply, ModelRequest
from rlhf_plugin_agents.backends.window import Cut, seen, words_of

Script = Callable[[ModelRequest], Message]


class ScriptedBackend:
    """Answers each task by its script.

    Args:
        scripts: task -> what answers its requests.
        takes_tools: False makes agents write calls as text.
        context_words: scripts see no more of a request; None is all of it.
        cut: what they lose of a longer one.
    """

    def __init__(
        self,
        scripts: Mapping[str, Script],
        name: str = "scripted",
        *,
        takes_tools: bool = True,
        context_words: int | None = None,
        cut: Cut = "refuse",
    ) -> None:
        self.scripts, self.name, self.takes_tools = scripts, name, takes_tools
        self.context_words = context_words
        self.cut: Cut = cut

    def complete(self, request: ModelRequest) -> ModelReply:
        """The script's turn; tokens are words, so that figures of scripts are at hand without a tokenizer.

        Raises:
            BackendFault: the task has no script.
            ContextFull: the request is longer than what is read, and nothing of it may be lost.
        """
        script = self.scripts.get(request.key)
        if script is None:
            raise BackendFault(f"no script for task '{request.key}'")
        if self.context_words is not None:
            request = seen(request, self.context_words, self.cut)
        message = script(request)
        return ModelReply(message, words_of(request), len(message_text(message).split()))

    def close(self) -> None:
        """Nothing is held."""
