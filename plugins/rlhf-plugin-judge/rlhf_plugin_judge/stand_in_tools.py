"""Tools and chat completions of the stand-in: what it writes, and which conversations it refuses."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Body = Mapping[str, Any]
CHAT_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error"}


@dataclass(frozen=True, slots=True)
class Wrote:
    text: str = ""
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()


def name_of(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def results_of(body: Body) -> list[str]:
    texts: list[str] = []
    for m in body["messages"]:
        if m["role"] == "tool":
            texts.append(str(m["content"]))
        elif isinstance(m["content"], list):
            texts += [str(b["content"]) for b in m["content"] if b.get("type") == "tool_result"]
    return texts


def flat(body: Body) -> list[dict[str, Any]]:
    """The turns of either form as messages with one text each; results of tools have the role ``tool``."""
    system = body.get("system") or ()
    messages = [{"role": "system", "content": block["text"]} for block in system]
    for m in body["messages"]:
        if isinstance(m["content"], list):
            for block in m["content"]:
                if block["type"] == "text":
                    messages.append({"role": m["role"], "content": block["text"]})
                elif block["type"] == "tool_result":
                    messages.append({"role": "tool", "content": block["content"]})
        else:
            messages.append({"role": m["role"], "content": m["content"] or ""})
    return messages


ORDERS: Mapping[str, Callable[[str], Any]] = {
    "length": lambda text: (len(text), text),
    "hash": lambda text: hashlib.sha256(text.encode()).hexdigest(),
}
"""What the better of two responses has more of: none depends on their order."""


def fitting_answer(judge_by: str = "length") -> Callable[[Body], str]:
    """Answers that fit the question: one grade, a rubric's best grades, the longer of two responses (or the one of the
    higher hash); elsewhere a text that is longer each time that the same is asked, so that two responses differ."""
    order = ORDERS[judge_by]
    times: Counter[str] = Counter()

    def answer(body: Body) -> str:
        system = "\n".join(m["content"] for m in flat(body) if m["role"] == "system")
        text = "\n".join(m["content"] for m in flat(body))
        if "one JSON object" not in system:
            times[text] += 1
            return "As ever" + ", and again" * (times[text] - 1) + "."
        pair = (re.search(f"<response_{x}-\\w+>\n(.*?)\n</response_{x}-", text, re.DOTALL) for x in "ab")
        first, second = (response[1] if response else "" for response in pair)
        better = "tie" if first == second else "A" if order(first) > order(second) else "B"
        best = re.findall(r"^- (.+?), from -?\d+ \(worst\) to (-?\d+) \(best\)", system, re.MULTILINE)
        grades = {name: int(grade) for name, grade in best}
        return json.dumps({"why": "as ever", "grade": 7, "grades": grades, "verdict": True, "better": better})

    return answer


def calls_first(count: int, text: str | None, judge_by: str = "length") -> Any:
    """An answer that calls the first tool offered so often, with arguments of its schema, before it says ``text``, or
    what fits."""
    say = fitting_answer(judge_by) if text is None else lambda body: text

    def answer(body: Body) -> Wrote:
        tools = body.get("tools") or ()
        if not tools or len(results_of(body)) >= count:
            return Wrote(say(body))
        function = tools[0].get("function") or tools[0]
        schema = function.get("parameters") or function.get("input_schema") or {}
        made = {"string": "x", "number": 1, "integer": 1, "boolean": True, "array": [], "object": {}}
        arguments = {k: made.get(v.get("type", "string"), "x") for k, v in schema.get("properties", {}).items()}
        return Wrote("", [(function["name"], arguments)])

    return answer


def fault_of_messages(body: Body) -> str:
    """Why the Messages API would refuse a conversation, "" if it would not."""
    open_: list[str] = []
    for i, m in enumerate(body["messages"]):
        content = m["content"]
        if not content or (isinstance(content, list) and any(b["type"] == "text" and not b["text"] for b in content)):
            return "messages: text content blocks must be non-empty"
        blocks = content if isinstance(content, list) else []
        results = [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]
        if sorted(results) != sorted(open_):
            return f"messages.{i}: `tool_use` ids {open_} need `tool_result` blocks immediately after, got {results}"
        open_ = [b["id"] for b in blocks if b["type"] == "tool_use"]
        if len(set(open_)) != len(open_):
            return f"messages.{i}: `tool_use` ids must be unique"
        if (open_ or results) and not body.get("tools"):
            return "requests which include `tool_use` or `tool_result` blocks must define tools"
    return f"`tool_use` ids {open_} were found without `tool_result` blocks" if open_ else ""


def fault_of_chat(body: Body) -> str:
    """Why a server of chat completions would refuse a conversation, "" if it would not."""
    open_: list[str] = []
    for m in body["messages"]:
        if m["role"] == "tool":
            if m["tool_call_id"] not in open_:
                return f"messages with role 'tool' must be a response to a preceding message with 'tool_calls': {m}"
            open_.remove(m["tool_call_id"])
            continue
        if open_:
            return f"an assistant message with 'tool_calls' must be followed by tool messages; missing: {open_}"
        for call in m.get("tool_calls") or ():
            json.loads(call["function"]["arguments"])
            open_.append(call["id"])
    return f"missing tool messages: {open_}" if open_ else ""


def blocks_of(wrote: Wrote, number: int) -> list[dict[str, Any]]:
    text = [{"type": "text", "text": wrote.text}] if wrote.text else []
    calls = [
        {"type": "tool_use", "id": f"toolu_{number}_{i}", "name": name, "input": dict(arguments)}
        for i, (name, arguments) in enumerate(wrote.calls)
    ]
    return [*text, *calls]


def completion(body: Body, wrote: Wrote, number: int, usage: tuple[int, int]) -> dict[str, Any]:
    calls = [
        {
            "id": f"call_{number}_{i}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(dict(arguments))},
        }
        for i, (name, arguments) in enumerate(wrote.calls)
    ]
    message = {"role": "assistant", "content": wrote.text or None, **({"tool_calls": calls} if calls else {})}
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)},
    }


def batch_of(name: str, count: int, results_url: str | None) -> dict[str, Any]:
    """A message batch; it has ended where its results have an address."""
    ended = results_url is not None
    counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    counts["succeeded" if ended else "processing"] = count
    return {
        "id": name,
        "type": "message_batch",
        "processing_status": "ended" if ended else "in_progress",
        "request_counts": counts,
        "created_at": "2026-01-01T00:00:00Z",
        "expires_at": "2026-01-02T00:00:00Z",
        "ended_at": "2026-01-01T01:00:00Z" if ended else None,
        "archived_at": None,
        "cancel_initiated_at": None,
        "results_url": results_url,
    }


def listed(models: Sequence[str]) -> dict[str, Any]:
    rows = [
        {"id": m, "object": "model", "type": "model", "display_name": m, "owned_by": "stand-in", "created": 0,
         "created_at": "2026-01-01T00:00:00Z"}
        for m in models
    ]  # fmt: skip
    return {"object": "list", "data": rows, "has_more": False, "first_id": None, "last_id": None}


def error_body(chat: bool, status: int, kind: str, text: str) -> str:
    """An error as either service writes it."""
    if chat:
        return json.dumps({"error": {"message": text, "type": CHAT_ERRORS.get(status, "server_error"), "code": None}})
    return json.dumps({"type": "error", "error": {"type": kind, "message": text}})
