"""What an agent sends to a model, and what comes back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from rlhf_core.data import Message, Tool, json_values

CallForm = Literal["native", "text", "none"]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    """Offered natively; empty where the agent writes calls as text."""
    form: CallForm = "none"
    role: str = "agent"
    key: str = ""
    """The task; not sent."""
    seed: int = 0
    max_tokens: int = 512
    temperature: float = 0.0

    @property
    def digest(self) -> str:
        parts = [self.messages, self.tools, self.role, self.seed, self.max_tokens, self.temperature]
        return hashlib.sha256(json.dumps(json_values(parts), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class ModelReply:
    """What a backend answers. ``message`` is a turn of the assistant; arguments of its calls are mappings."""

    message: Message
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    errors: Sequence[Mapping[str, str]] = ()
    """Calls that could not be read: ``{"id", "name", "error"}``, in words for the agent."""


class BackendFault(Exception):
    """No reply: the service failed, the cap is reached, a recording has none. The task has no score then."""


class ContextFull(Exception):
    """The request does not fit into what the model reads at once."""


class Backend(Protocol):
    name: str
    takes_tools: bool

    def complete(self, request: ModelRequest) -> ModelReply:
        """Answer one request, or raise :class:`BackendFault` or :class:`ContextFull`."""
        ...

    def close(self) -> None:
        """Let go of what it holds; idempotent."""
        ...
