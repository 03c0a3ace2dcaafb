"""A turn's text -> its reasoning, its content and its calls. Nothing that a policy writes raises or gets lost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_core.data.tool_calls import ToolFormat, checked
from rlhf_core.types.messages import Message, Tool, ToolCall

ID = re.compile(r"[A-Za-z0-9]{9}\Z")
"""What every chat template takes as the id of a call; Mistral's takes nothing else."""
THOUGHT = re.compile(r"\A\s*(?:<think>)?(.*?)</think>", re.DOTALL)
UNFINISHED = re.compile(r"\A\s*<think>(.*)\Z", re.DOTALL)


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


def parse_turn(
    text: str, tool_format: ToolFormat, tools: Sequence[Tool], *, cut: bool = False, earlier: int = 0
) -> AssistantTurn:
    """Take apart what a policy wrote."""
    reasoning, content = split_reasoning(text)
    if not tools:
        return AssistantTurn(content, (), reasoning)
    taken = tool_format.take(content)
    why = "; the turn was cut at its limit of tokens" if cut else ""
    calls: list[ToolCall] = []
    ids: set[str] = set()
    for n, call in enumerate(taken.calls):
        name = call.id if ID.match(call.id) and call.id not in ids else f"call{earlier + n:05d}"
        ids.add(name)
        calls.append(checked(call, tools, name, why if n == len(taken.calls) - 1 else ""))
    return AssistantTurn(taken.content if calls else content, tuple(calls), reasoning)


def split_reasoning(text: str) -> tuple[str, str]:
    """(What stands before ``</think>`` at the beginning, the rest); reasoning that never ends is all there is."""
    if match := THOUGHT.match(text):
        return match[1].strip(), text[match.end() :].lstrip("\n")
    if match := UNFINISHED.match(text):
        return match[1].strip(), ""
    return "", text
