"""What an oracle is asked and answers while it plays as an agent: rows for SFT, whatever becomes of its context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import PrivateAttr

from rlhf_plugin_agents.backends.config import ScriptedConfig
from rlhf_studies.common.pocket import Row


class Recorded(ScriptedConfig):
    """The scripted backend; ``rows`` has a demonstration for each request so far."""

    _rows: list[Row] = PrivateAttr(default_factory=list)

    @property
    def rows(self) -> list[Row]:
        return self._rows

    def make(self, tasks: Sequence[Any], ctx: Any) -> Any:
        backend: Any = super().make(tasks, ctx)
        complete = backend.complete

        def kept(request: Any) -> Any:
            reply = complete(request)
            tools = {"tools": [dict(tool) for tool in request.tools]} if request.tools else {}
            self._rows.append({"messages": [*map(dict, request.messages), dict(reply.message)], **tools})
            return reply

        backend.complete = kept
        return backend
