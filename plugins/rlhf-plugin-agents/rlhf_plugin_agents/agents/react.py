"""Think, call, read, and again: with calls in the model's own form, or as lines of text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise

from rlhf_core.data import Message, Tool, ToolCall
from rlhf_plugin_agents.agents.base import (
    ANSWER_RULE,
    FINAL_STATED,
    HONESTY_RULE,
    Agent,
    Responder,
    final_answer,
    opening,
)
from rlhf_plugin_agents.agents.session import Session, Stop, first_value
from rlhf_plugin_agents.tools.library import PROMPTS

ACTION = "Action:"
OBSERVATION = "Observation:"
TEXT_RULES = PROMPTS["text_rules"]
TEXT_MARK = TEXT_RULES.split("{tools}")[1].split("{")[0]
_INPUT = re.compile(r"\s*([A-Za-z_][\w.\-]*)\s*\n\s*Action Input:\s*")


class ReactAgent(Agent):
    """Calls tools until it answers."""

    def work(self, task: Sequence[Message], session: Session, system: str, respond: Responder | None) -> str:
        """Play until a turn without calls, or until the user or the task ends the conversation."""
        written = session.form == "text"
        messages: list[Message] = list(opening(task, system, *self.rules(session, respond)))
        session.note(*messages)
        while True:
            turn = self._turn_in_text(messages, session) if written else self._turn(messages, session)
            if session.box.done:
                raise Stop("done", turn or "")
            if turn is None:
                continue
            if respond is None:
                return self.answer_in(turn)
            reply = respond(final_answer(turn) if written else turn)
            if reply is None:
                raise Stop("done", turn)
            messages.append({"role": "user", "content": reply})
            session.note(messages[-1])

    def rules(self, session: Session, respond: Responder | None) -> Sequence[str]:
        """What the model is told beside the task's own rules."""
        if session.form == "text":
            return ("" if respond else HONESTY_RULE, TEXT_RULES.format(tools=listed(session.box.specs)))
        return () if respond else (HONESTY_RULE, ANSWER_RULE)

    def answer_in(self, text: str) -> str:
        return final_answer(text)

    def _turn(self, messages: list[Message], session: Session) -> str | None:
        reply = session.ask(messages, session.box.specs, session.form)
        messages.append(reply.message)
        if not reply.message.get("tool_calls") and not reply.errors:
            return str(reply.message.get("content") or "")
        messages.extend(session.answer_calls(reply))
        return None

    def _turn_in_text(self, messages: list[Message], session: Session) -> str | None:
        reply = session.ask(messages, (), "text")
        text = str(reply.message.get("content") or "").split(OBSERVATION)[0].rstrip()
        messages.append({"role": "assistant", "content": text})
        calls = written_calls(text, len(session.calls))
        if not calls:
            return text
        results = [session.call(call).result for call in calls]
        messages.append({"role": "user", "content": "\n".join(f"{OBSERVATION} {result}" for result in results)})
        session.note(messages[-1])
        return None


def writes_calls(messages: Sequence[Message]) -> bool:
    """Whether calls are text in a conversation: its rules say how to write them."""
    return any(TEXT_MARK in str(m.get("content")) for m in messages if m["role"] in ("system", "user"))


def listed(tools: Sequence[Tool]) -> str:
    functions = [t["function"] for t in tools]
    return "\n".join(
        f"- {f['name']}: {f.get('description', '')} Arguments: {json.dumps(f['parameters'].get('properties', {}))}"
        for f in functions
    )


def written_call(text: str, number: int = 0) -> ToolCall | None:
    """The first call of a text, as JSON after ``Action:`` or as a name and ``Action Input:``; None without one."""
    start, stated = text.find(ACTION), FINAL_STATED.search(text)
    if start < 0 or (stated is not None and stated.start() < start):
        return None
    rest, name = text[start + len(ACTION) :], f"call{number:05d}"
    classic = _INPUT.match(rest)
    try:
        if classic:
            arguments, tool = first_value(rest[classic.end() :].strip()), classic[1]
        else:
            value = first_value(rest.strip())
            arguments, tool = value["arguments"], value["name"]
        if not isinstance(arguments, dict) or not isinstance(tool, str):
            raise TypeError("arguments must be an object and name a text")
    except (ValueError, KeyError, TypeError) as error:
        return ToolCall("", {}, name, f'the action is not JSON of the form {{"name": ..., "arguments": ...}}: {error}')
    return ToolCall(tool, arguments, name)


def written_calls(text: str, number: int = 0) -> list[ToolCall]:
    """All calls of a text, in their order; what stands after a final answer is not read."""
    starts = [m.start() for m in re.finditer(re.escape(ACTION), FINAL_STATED.split(text)[0])]
    parts = [text[start:end] for start, end in pairwise([*starts, len(text)])]
    return [call for i, part in enumerate(parts) if (call := written_call(part, number + i)) is not None]


def call_in_text(name: str, arguments: object, thought: str = "") -> str:
    return f"Thought: {thought}\n{ACTION} {json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}"
