"""Chat turns with tool calls, and the tools that a prompt offers: one form, whatever the row had (ADR 0014)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf_core.types.frozen import frozen

Message = Mapping[str, Any]
"""One chat turn: ``role`` and ``content``, a text; None, as OpenAI writes a turn of calls alone, means "".

An assistant's turn may have ``tool_calls``, a list of ``{"id", "type": "function", "function": {"name", "arguments"}}``
whose arguments are a mapping, and ``reasoning``, a text. A ``tool`` turn may have ``tool_call_id`` and ``name``.

Example: ``{"role": "user", "content": "What is 2 + 2?"}``
"""

Tool = Mapping[str, Any]
"""A tool that a prompt offers, in OpenAI's form; ``parameters`` is a JSON schema.

Example:
    {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object",
     "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}}}
"""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the policy wrote, well or not: a call with an ``error`` must not run; the policy is shown the error.

    Example:
        ToolCall("add", {"a": 2, "b": 2}, id="call00001")
    """

    name: str
    """"" where not even the name could be read."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    error: str = ""
    """What is wrong with it, in words for the policy; "" for a call that may run."""
    written: str = ""
    """The call as the policy wrote it, where that could not be read."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", frozen(self.arguments))

    @property
    def ok(self) -> bool:
        """Whether it may run."""
        return not self.error

    def as_json(self) -> dict[str, Any]:
        """As it stands in a message's ``tool_calls``."""
        function = {"name": self.name, "arguments": frozen(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}


def calls_of(message: Message) -> tuple[ToolCall, ...]:
    """The calls of an assistant's turn, in their order."""
    calls: Sequence[Mapping[str, Any]] = message.get("tool_calls") or ()
    return tuple(ToolCall(c["function"]["name"], c["function"]["arguments"], str(c.get("id") or "")) for c in calls)


def content_of(message: Message) -> str:
    """The text of a turn without its calls; "" for None."""
    return message.get("content") or ""


def message_text(message: Message) -> str:
    """A turn as text for people, judges and hashes: its content, then each call on a line of its own.

    Of a turn without calls it is the content. What the policy is fed is written by the chat template instead.

    Example:
        >>> message_text({"role": "assistant", "content": None, "tool_calls": [ToolCall("now").as_json()]})
        '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    """
    calls = calls_of(message)
    return "\n".join([*([text] if (text := content_of(message)) or not calls else []), *map(call_text, calls)])


def call_text(call: ToolCall) -> str:
    """A call as text for people, judges and hashes."""
    if call.written:
        return call.written
    function = {"name": call.name, "arguments": call.arguments}
    return f"<tool_call>{json.dumps(function, ensure_ascii=False)}</tool_call>"


def tool_name(tool: Tool) -> str:
    """What calls name it."""
    return str(tool["function"]["name"])


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """One human (or simulated) preference.

    Example:
        PreferencePair(id="hh/3", prompt=({"role": "user", "content": "Hi"},), chosen="Hello.", rejected="Go away.")
    """

    id: str
    prompt: tuple[Message, ...]
    chosen: str
    rejected: str
    margin: float = 0.0
    source: str = ""
    tools: tuple[Tool, ...] = ()
    chosen_turn: Message | None = None
    """The chosen turn whole, where it is more than a text: with calls or reasoning; ``chosen`` shows them as text."""
    rejected_turn: Message | None = None


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One supervised example: a conversation and the completion to imitate."""

    id: str
    prompt: tuple[Message, ...]
    completion: str
    source: str = ""
    tools: tuple[Tool, ...] = ()
    turn: Message | None = None
    """The turn to imitate whole, where it is more than a text: with calls or reasoning."""


@dataclass(frozen=True, slots=True)
class UnpairedPreference:
    """One response and whether it is desirable.

    Example:
        UnpairedPreference("a/3", ({"role": "user", "content": "Hi"},), "Go away.", desirable=False)
    """

    id: str
    prompt: tuple[Message, ...]
    completion: str
    desirable: bool
    source: str = ""
    tools: tuple[Tool, ...] = ()
    turn: Message | None = None
    """As in :class:`Demonstration`."""
