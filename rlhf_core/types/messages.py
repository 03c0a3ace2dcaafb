"""Chat messages, tool calls and tools in one form, whatever the row had (ADR 0014); and the turns of an episode."""

from __future__ import annotations

import enum
import itertools
import json
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

from rlhf_core.types.frozen import frozen

Message = Mapping[str, Any]
"""One chat turn: ``role`` and ``content``, a text; None, as OpenAI writes a turn of calls alone, means "".

An assistant's turn may have ``tool_calls``, a list of ``{"id", "type": "function", "function": {"name", "arguments"}}``
whose arguments are a mapping, and ``reasoning``, a text. A ``tool`` turn may have ``tool_call_id`` and ``name``.

Example: ``{"role": "user", "content": "What is 2 + 2?"}``
"""

VARIABLES = "chat_template_kwargs"
"""The column with a row's own variables of the chat template, and where they stand in its first message."""

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


@dataclass(frozen=True, slots=True)
class AssistantTurn:
    """What the policy wrote in one turn."""

    content: str
    calls: tuple[ToolCall, ...] = ()
    """In the order of writing, those with an error among them: each gets a result."""
    reasoning: str = ""

    @property
    def message(self) -> Message:
        """As a message; a call that could not be read stands in its content, as it was written."""
        written = [call.written for call in self.calls if not call.ok]
        calls = [call.as_json() for call in self.calls if call.ok]
        message: dict[str, Any] = {"role": "assistant", "content": "\n".join(filter(None, [self.content, *written]))}
        if calls:
            message["tool_calls"] = calls
        if self.reasoning:
            message["reasoning"] = self.reasoning
        return message


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
    text, calls = content_of(message), map(call_text, calls_of(message) if message.get("tool_calls") else ())
    return "\n".join([text, *calls] if text else calls)


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


POLICY = "assistant"
"""The role of what the policy wrote; every other role is what it read."""


class TurnStatus(enum.StrEnum):
    """How a turn went."""

    OK = "ok"
    """Nothing went wrong."""
    ERROR = "error"
    """A call was no JSON, broke its schema or named no tool, or the tool said that it failed."""
    TIMEOUT = "timeout"
    """A tool did not answer before its deadline and was killed."""
    TRUNCATED = "truncated"
    """Cut: a turn of the policy by its token limit, a result by ``max_result_characters``."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of an episode.

    Example:
        Turn((12, 40), "tool", {"role": "tool", "content": "42", "tool_call_id": "call_0"}, seconds=0.2)
    """

    span: tuple[int, int]
    """First token and one past the last, as places in ``Rollout.completion_ids``, the template's marks included."""
    role: str
    """``assistant`` for what the policy sampled; ``tool``, ``user`` or ``environment`` for what it was given."""
    message: Mapping[str, Any]
    """As a chat message; JSON values only. ``content`` of the policy's turns is what it wrote besides calls."""
    score: float | None = None
    """A reward for this turn alone; None where there is none."""
    status: TurnStatus = TurnStatus.OK
    """How it went."""
    seconds: float = 0.0
    """How long the environment took."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", frozen(self.message))

    @property
    def text(self) -> str:
        """Content of the message; "" where it has none."""
        return content_of(self.message)


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a completion: one author's (a turn, a tool's result), or what was sampled in one context.

    Example:
        Segment((0, 12), "assistant"), Segment((12, 40), "tool"), Segment((40, 55), "assistant")
    """

    span: tuple[int, int]
    """First token and one past the last, as places in ``completion_ids``."""
    role: str
    """``assistant`` for what the policy sampled; ``tool``, ``user`` or ``environment`` for what it was given."""
    prompt_ids: tuple[int, ...] | None = None
    """All that the policy was fed before this stretch, where its context was rewritten; None: what stands before it."""

    def __post_init__(self) -> None:
        if self.prompt_ids is not None and not self.prompt_ids:
            raise ValueError(f"segment {self.span} begins a context of no tokens")


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """A stretch of a completion that one version of the weights sampled.

    Example:
        VersionSpan((0, 31), 4), VersionSpan((31, 64), 5)
    """

    span: tuple[int, int]
    """First token and one past the last, as places in ``completion_ids``."""
    version: int
    """Optimizer updates that these weights had seen."""


def final_text(turns: Sequence[Turn]) -> str:
    """What the policy wrote in its last turn; "" if it wrote none."""
    return next((turn.text for turn in reversed(turns) if turn.role == POLICY), "")


def last_turn(turns: Sequence[Turn]) -> int:
    """Place of the policy's last turn; 0 if it has none."""
    return max((n for n, turn in enumerate(turns) if turn.role == POLICY), default=0)


def conversation(messages: Sequence[Message], turns: Sequence[Turn]) -> tuple[Message, ...]:
    """A prompt's messages and turns after them as one conversation. Where an agent opened contexts of its own, each
    with rules, the latest rules stand first, in the place of the prompt's own.
    """
    whole = (*messages, *(turn.message for turn in turns))
    rules = [turn.message for turn in turns if turn.role == "system"]
    return (rules[-1], *(m for m in whole if m["role"] != "system")) if rules else whole


def fault_in(count: int, mask: Sized | None, segments: Sequence[Segment], turns: Sequence[Turn]) -> str | None:
    """What is wrong about the shape of an episode of ``count`` tokens; None if nothing is."""
    if mask is not None and len(mask) != count:
        return f"{count} tokens but a mask of {len(mask)}"
    for name, spans in (("segments", [s.span for s in segments]), ("turns", [t.span for t in turns])):
        if spans and not _cover(spans, count):
            return f"{name} {spans} do not cover its {count} tokens end to end"
        if any(start > end for start, end in spans):
            return f"{name} {spans} run backwards"
    return None


def _cover(spans: Sequence[tuple[int, int]], count: int) -> bool:
    return [start for start, _ in spans] + [count] == [0, *(end for _, end in spans)]


def fault_in_versions(count: int, oldest: int, versions: Sequence[VersionSpan], *, rising: bool) -> str | None:
    """What is wrong about version spans of a completion of ``count`` tokens; None if nothing is. ``rising``: later
    tokens have later versions; an episode's turns, which different servers may answer, need not.
    """
    if not versions:
        return None
    spans, numbers = [v.span for v in versions], [v.version for v in versions]
    if not _cover(spans, count) or any(a >= b for a, b in spans):
        return f"version spans {spans} do not cover its {count} tokens end to end"
    if min(numbers) != oldest or any(a == b or (rising and a > b) for a, b in itertools.pairwise(numbers)):
        return f"version spans of versions {numbers}, which do not rise from policy version {oldest}"
    return None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What an environment answers to one call; a plain ``str`` stands for a result with status ``ok``.

    Example:
        ToolResult("42", score=0.1)
    """

    content: str
    status: TurnStatus = TurnStatus.OK
    score: float | None = None
    """A reward for this result alone; None: there is none."""
    done: bool = False
    """The episode ends here; the policy writes no more."""


class ToolError(Exception):
    """Raised by a tool or an environment: the call was wrong. The policy reads the message, and the episode goes on."""
