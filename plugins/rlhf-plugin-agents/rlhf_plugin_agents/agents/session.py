"""One task being played: asks the backend, makes the calls, keeps the record and the limits."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlhf_core.data import Message, Tool, ToolCall
from rlhf_plugin_agents.agents.config import AgentConfig
from rlhf_plugin_agents.backends.base import Backend, CallForm, ModelReply, ModelRequest
from rlhf_plugin_agents.tools.box import ToolBox
from rlhf_plugin_agents.trajectory import CallRecord, ModelTurn

DEEPEST = 64
"""Levels of a JSON value; readers of deeper ones, ours and others', end in their own recursion."""
TOO_DEEP = f"it is nested more than {DEEPEST} levels deep"
HALF = "it holds half of a character (a lone surrogate)"


def first_value(text: str) -> Any:
    try:
        value, _ = json.JSONDecoder().raw_decode(text)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    if fault := fault_in(value):
        raise ValueError(fault)
    return value


def fault_in(value: Any) -> str:
    """Why a JSON value cannot be kept; "" if it can."""
    level = [value]
    for _ in range(DEEPEST):
        inner: list[Any] = []
        for one in level:
            inner += one.values() if isinstance(one, Mapping) else one if isinstance(one, list | tuple) else ()
        level = inner
    if level:
        return TOO_DEEP
    return "" if without_surrogates(text := json.dumps(value, ensure_ascii=False, default=str)) == text else HALF


def without_surrogates(text: str) -> str:
    """The text with a question mark for each half of a character."""
    return text.encode("utf-8", "replace").decode()


def storable(reply: ModelReply) -> ModelReply:
    """A reply as it can be kept; calls whose arguments cannot be are empty, each with an error."""
    message, errors = dict(reply.message), list(reply.errors)
    if isinstance(message.get("content"), str):
        message["content"] = without_surrogates(message["content"])
    calls: list[dict[str, Any]] = []
    for call in message.get("tool_calls") or ():
        function, name = call["function"], without_surrogates(str(call["function"]["name"]))
        fault = fault_in(function["arguments"])
        if fault:
            errors.append({"id": str(call.get("id") or ""), "name": name, "error": f"the arguments: {fault}"})
        calls.append({**call, "function": {"name": name, "arguments": {} if fault else function["arguments"]}})
    if calls:
        message["tool_calls"] = calls
    return replace(reply, message=message, errors=errors)


class Stop(Exception):
    """The agent ends here, with a reason and perhaps an answer."""

    def __init__(self, reason: str, answer: str = "", detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.answer, self.detail = reason, answer, detail


class Session:
    """What an agent works with on one task, whose name is ``key``; ``seed`` is of every request."""

    def __init__(self, config: AgentConfig, backend: Backend, box: ToolBox, key: str, seed: int) -> None:
        self.config, self.backend, self.box, self.key, self.seed = config, backend, box, key, seed
        self.turns: list[ModelTurn] = []
        self.calls: list[CallRecord] = []
        self.messages: list[Message] = []
        self.began = time.monotonic()

    @property
    def form(self) -> CallForm:
        """How this agent's calls are written with this backend."""
        if not self.box.specs:
            return "none"
        if self.config.calls == "auto":
            return "native" if self.backend.takes_tools else "text"
        return self.config.calls

    def note(self, *messages: Message) -> None:
        self.messages.extend(messages)

    def ask(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), form: CallForm = "none", role: str = "agent"
    ) -> ModelReply:
        if len(self.turns) >= self.config.max_turns:
            raise Stop("max_turns")
        if time.monotonic() - self.began > self.config.deadline_s:
            raise Stop("deadline", detail=f"{self.config.deadline_s:g} s are over")
        request = ModelRequest(
            tuple(messages), tuple(tools), form, role, self.key, self.seed,
            self.config.max_turn_tokens, self.config.temperature,
        )  # fmt: skip
        start = time.monotonic()
        reply = storable(self.backend.complete(request))
        seconds = time.monotonic() - start
        spent = (reply.prompt_tokens, reply.completion_tokens, reply.cost_usd, seconds)
        self.turns.append(ModelTurn(role, request.digest, reply.message, *spent, tuple(reply.errors)))
        self.note(reply.message)
        return reply

    def call(self, call: ToolCall, only: str | None = None) -> CallRecord:
        """Make one call; a call of another tool than ``only`` is answered with an error."""
        if len(self.calls) >= self.config.max_calls:
            raise Stop("max_calls")
        if only is not None and not call.error and call.name != only:
            call = replace(call, error=f"there is no tool '{call.name}' here; there is {only}")
        record = self.box.call(call)
        self.calls.append(record)
        return record

    def answer_calls(self, reply: ModelReply, only: str | None = None) -> list[Message]:
        """Make every call of a turn, results in order; ``only`` is the one tool that may be called, and once."""
        broken = {e["id"]: e for e in reply.errors}
        results: list[Message] = []
        for raw in reply.message.get("tool_calls") or ():
            error = broken.pop(str(raw.get("id") or ""), {}).get("error", "")
            function = raw["function"]
            if only is not None and results:
                error = error or "not made: there is one call here"
            call = ToolCall(str(function["name"]), function["arguments"], str(raw.get("id") or ""), error)
            results.append(_result(self.call(call, only)))
        for fault in broken.values():
            call = ToolCall(fault["name"], {}, fault["id"], fault["error"])
            results.append(_result(self.call(call)))
        self.note(*results)
        return results


def _result(record: CallRecord) -> dict[str, Any]:
    named = {"name": record.name} if record.name else {}
    return {"role": "tool", "content": record.result, "tool_call_id": record.id, **named}
