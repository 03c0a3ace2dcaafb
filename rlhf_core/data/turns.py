"""Turns of OpenAI, ShareGPT, Anthropic and Hermes rows in one form, their tool calls and results included."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.data.jsonl import NotJson, read_whole
from rlhf_core.data.tools import load_format
from rlhf_core.types.errors import DatasetError
from rlhf_core.types.messages import Message

CALL_ROLES = ("function_call", "tool_call")
"""ShareGPT's turns that are calls alone, as JSON."""
ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bot", "model", *CALL_ROLES), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("tool", "observation", "function", "function_response", "tool_response"), "tool"),
}
REASONING = ("reasoning", "reasoning_content", "thinking")
ARGUMENTS = ("arguments", "parameters", "input", "args")
MEDIA = ("images", "audio", "videos")
_RESPONSE = re.compile(r"<tool_response>\s*(.*?)\s*(?:</tool_response>|\Z)", re.DOTALL)


def read_turns(turns: Sequence[Any], where: str, *, tools: bool) -> tuple[Message, ...]:
    """Turns in our form; each call has an id, and each result that of its call. In a row with tools Hermes's
    ``<tool_call>`` and ``<tool_response>`` are calls and results, and its system turn, which lists the tools, is left
    to the chat template.
    """
    read = [message for turn in turns for message in _read(turn, where)]
    if tools:
        read = [message for one in read for message in _from_hermes(one, where)]
    return tuple(_paired(read)) if any(m.get("tool_calls") for m in read) else tuple(map(_plain, read))


def _read(turn: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(turn, Mapping):
        raise _no_turn(turn, where)
    lost = next((key for key in MEDIA if turn.get(key)), None)
    if lost:
        raise DatasetError(
            f"a turn has {lost} besides its text, which training cannot read", where=where, fix="only text is read"
        )
    name = str(_first(turn, "role", "from")).lower()
    role, content = ROLES.get(name), _first(turn, "content", "value")
    if role is None:
        raise _no_turn(turn, where)
    if name in CALL_ROLES:
        return [{"role": role, "content": "", "tool_calls": _calls(_json(content, "a call", where), where)}]
    calls = _calls(turn.get("tool_calls") or [], where)
    calls += _calls([turn["function_call"]] if turn.get("function_call") else [], where)
    blocks = _blocks(content, where) if isinstance(content, list) and content else None
    if blocks is not None:
        calls, content = [*calls, *blocks["calls"]], blocks["text"]
    if content is None and (calls or (role == "assistant" and any(turn.get(key) for key in REASONING))):
        content = ""
    if not isinstance(content, str):
        raise _no_turn(turn, where)
    message: dict[str, Any] = {"role": role, "content": content}
    if calls:
        message["tool_calls"] = calls
    reasoning = next((turn[key] for key in REASONING if turn.get(key)), None) or (blocks or {}).get("reasoning")
    if reasoning:
        message["reasoning"] = _text(reasoning, where)
    if role == "tool":
        message |= {key: str(turn[key]) for key in ("tool_call_id", "name") if turn.get(key)}
    if role == "assistant" and turn.get("weight") not in (None, 1):
        if turn["weight"] != 0:
            why = f"got {turn['weight']!r}"
            raise DatasetError(
                "the weight of a turn is neither 0 nor 1", where=where, why=why, fix="0: it is only read"
            )
        message["weight"] = 0
    results: list[dict[str, Any]] = (blocks or {}).get("results", [])
    return [*results, *([message] if content or calls or not results else [])]


def _first(row: Mapping[str, Any], *keys: str) -> Any:
    """A row's first value that is not null: tables fill the keys that only other rows have with nulls."""
    return next((row[key] for key in keys if row.get(key) is not None), None)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _no_turn(value, where)
    return value


def _blocks(content: list[Any], where: str) -> dict[str, Any]:
    """Text, reasoning, calls and results of typed blocks, as OpenAI and Anthropic write them."""
    text, reasoning = list[str](), list[str]()
    calls, results = list[dict[str, Any]](), list[dict[str, Any]]()
    for block in content:
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind in ("text", "input_text", "output_text"):
            text.append(_text(block.get("text"), where))
        elif kind in ("thinking", "reasoning"):
            reasoning.append(_text(_first(block, "thinking", "text"), where))
        elif kind == "tool_use":
            call = {"id": block.get("id"), "name": block.get("name"), "arguments": _first(block, *ARGUMENTS)}
            calls += _calls([call], where)
        elif kind == "tool_result":
            inner = block.get("content") or ""
            text_inside = inner if isinstance(inner, str) else _blocks(inner, where)["text"]
            results.append(
                {"role": "tool", "content": text_inside, "tool_call_id": str(block.get("tool_use_id") or "")}
            )
        else:
            raise DatasetError(
                f"a turn has a block of type {kind!r}, which training cannot read",
                where=where,
                why=f"got {str(block)[:80]}",
                fix="use blocks of type text, thinking, tool_use or tool_result",
            )
    return {"text": "".join(text), "reasoning": "\n".join(reasoning), "calls": calls, "results": results}


def _calls(rows: Any, where: str) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for row in rows if isinstance(rows, (list, tuple)) else [rows]:
        function = row.get("function", row) if isinstance(row, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(row, Mapping) or not isinstance(function, Mapping) or not isinstance(name, str) or not name:
            raise DatasetError(
                "a tool call has no name",
                where=where,
                why=f"got {str(row)[:80]}",
                fix='write {"id": ..., "type": "function", "function": {"name": ..., "arguments": {...}}}',
            )
        value = _first(function, *ARGUMENTS)
        arguments = _json(value, f"the arguments of a call of '{name}'", where) if value not in (None, "") else {}
        if not isinstance(arguments, Mapping):
            raise DatasetError(
                f"the arguments of a call of '{name}' are not an object",
                where=where,
                why=f"got {str(arguments)[:80]}",
                fix='write {"name of the argument": value}',
            )
        function_row = {"name": name, "arguments": arguments}
        calls.append({"id": str(row.get("id") or ""), "type": "function", "function": function_row})
    return calls


def _json(value: Any, what: str, where: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return read_whole(value)
    except NotJson as error:
        raise DatasetError(
            f"{what} is not valid JSON" if what == "a call" else f"{what} are not valid JSON",
            where=where,
            why=f"{error}; it is {value[:60]!r}",
            fix="correct or remove that row",
        ) from None


def _from_hermes(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
    role, content = message["role"], message["content"]
    if role == "system" and "<tools>" in content and "</tools>" in content:
        return []
    if role == "assistant" and "<tool_call>" in content and not message.get("tool_calls"):
        taken = load_format("hermes", where)().take(content)
        broken = next((call for call in taken.calls if call.error), None)
        if broken is not None:
            raise DatasetError(
                "a call is not valid JSON",
                where=where,
                why=f"{broken.error}; it is {broken.written[:60]!r}",
                fix="correct or remove that row",
            )
        rows = [{"name": call.name, "arguments": call.arguments} for call in taken.calls]
        return [{**message, "content": taken.content, "tool_calls": _calls(rows, where)}]
    if role == "tool" and content.lstrip().startswith("<tool_response>"):
        return [{**message, "content": text_inside} for text_inside in _RESPONSE.findall(content)]
    return [message]


def _paired(messages: list[dict[str, Any]]) -> list[Message]:
    """Calls with ids, and results with those of their calls; a result without one answers the first open call."""
    number = 0
    open_calls: list[dict[str, Any]] = []
    for message in messages:
        for call in message.get("tool_calls", ()):
            call["id"] = call["id"] or f"call{number:05d}"
            open_calls.append(call)
            number += 1
        if message["role"] == "tool":
            call_id = message.get("tool_call_id")
            call = next((c for c in open_calls if call_id in (None, "", c["id"])), None)
            if call is not None:
                open_calls.remove(call)
                message |= {"tool_call_id": call["id"], "name": message.get("name") or call["function"]["name"]}
    return list(messages)


def _plain(message: dict[str, Any]) -> Message:
    """A conversation without calls has nothing that results could belong to."""
    return {key: value for key, value in message.items() if key not in ("tool_call_id", "name")}


def _no_turn(turn: Any, where: str) -> DatasetError:
    return DatasetError(
        "a turn is not {role: user | assistant | system | tool, content: text}",
        where=where,
        why=f"got {str(turn)[:80]}",
        fix="only text is read; roles of other names can be " + ", ".join(sorted(set(ROLES) - set(ROLES.values()))),
    )
