"""What a chat template is given of turns with calls, and whether it writes them."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from rlhf_core.models.template_deadline import CPU_S, endless
from rlhf_core.types.errors import ModelError
from rlhf_core.types.messages import VARIABLES, Message, Tool, content_of

NAME, KEY, VALUE, RESULT = ("tool-to-find", "argument-to-find", "value-to-find", "result-to-find")
PROBE_TOOL: Tool = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Finds.",
        "parameters": {"type": "object", "properties": {KEY: {"type": "string", "description": "What."}}},
    },
}
PROBE_CALL: Mapping[str, Any] = {
    "id": "call00000",
    "type": "function",
    "function": {"name": NAME, "arguments": {KEY: VALUE}},
}
ASKED: Message = {"role": "user", "content": "x"}
CALLING: Message = {"role": "assistant", "content": "", "tool_calls": [PROBE_CALL]}
ANSWERED: Message = {"role": "tool", "content": RESULT, "tool_call_id": "call00000", "name": NAME}
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
"""What templates call the reasoning of a turn."""
FIX = (
    "take a model whose template knows tools, --set model.chat_template=hermes (the form of Hermes and Qwen 2.5, to be "
    "learned), or leave the tools out"
)


def template_text(tokenizer: Any) -> str:
    """The chat template's text; of several, that for tools."""
    template = getattr(tokenizer, "chat_template", None) or ""
    if isinstance(template, Mapping):
        return str(template.get("tool_use") or template.get("default") or next(iter(template.values()), ""))
    return str(template)


def template_message(message: Message, template: str) -> dict[str, Any]:
    """A turn as the template gets it: content a text, reasoning under the names that the template knows."""
    given = {key: value for key, value in message.items() if value is not None and key not in REASONING_KEYS}
    if not given.get("tool_calls"):
        given.pop("tool_calls", None)
    given["content"] = content_of(message)
    if message.get("reasoning"):
        given |= {key: message["reasoning"] for key in REASONING_KEYS if key in template}
    return given


def with_names(messages: Sequence[Message]) -> list[Message]:
    """Results with the names of the tools that they are of, which some templates write (Hermes)."""
    names: dict[str, str] = {}
    named: list[Message] = []
    for message in messages:
        names |= {str(call.get("id")): call["function"]["name"] for call in message.get("tool_calls") or ()}
        name = names.get(str(message.get("tool_call_id")))
        fills = message["role"] == "tool" and not message.get("name") and name is not None
        named.append({**message, "name": name} if fills else message)
    return named


def _with_text(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call with its arguments as JSON text, for templates that add them to text (DeepSeek V3)."""
    arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return {**call, "function": {**call["function"], "arguments": arguments}}


@contextlib.contextmanager
def limited(model: str, turn: str) -> Generator[None, None, None]:
    """End a template's loops after ``CPU_S`` seconds for the conversation that ends with ``turn``: what it does with
    certain words no trial knows. In the main thread only, where the system has the timer.

    Raises:
        ModelError: names the model and the turn.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGVTALRM"):
        yield
        return
    began = time.thread_time()

    def late(signum: int, frame: Any) -> None:
        if time.thread_time() - began >= CPU_S:
            raise endless(model, f"{CPU_S} s", turn)
        signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)  # other threads of this process computed meanwhile

    handler = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, handler)


def fill(tokenizer: Any, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool], *, generation: bool) -> str:
    """The filled template."""
    row = {k: v for turn in messages for k, v in (turn.get(VARIABLES) or {}).items()}
    options: dict[str, Any] = {**row, "row_variables": row, **({"tools": [*map(dict, tools)]} if tools else {})}

    def filled(turns: Sequence[Mapping[str, Any]]) -> str:
        given = [{key: value for key, value in turn.items() if key != VARIABLES} for turn in turns]
        with limited(getattr(tokenizer, "name_or_path", ""), str(given[-1].get("content"))):
            text = tokenizer.apply_chat_template(given, tokenize=False, add_generation_prompt=generation, **options)
        return str(text)

    try:
        return filled(messages)
    except TypeError:
        if not any(m.get("tool_calls") for m in messages):
            raise
        return filled(
            [{**m, "tool_calls": [*map(_with_text, m["tool_calls"])]} if m.get("tool_calls") else m for m in messages]
        )


def unwritten(tokenizer: Any, *, calls: bool) -> str:
    """What the template leaves out: ``tools``, ``tool calls``, ``results of tools``; "" if nothing, or it refuses."""
    try:
        if not calls:
            return "" if NAME in fill(tokenizer, [ASKED], [PROBE_TOOL], generation=True) else "tools"
        called = fill(tokenizer, [ASKED, CALLING, ANSWERED], [PROBE_TOOL], generation=True)
        bare = fill(tokenizer, [ASKED, {"role": "assistant", "content": ""}], [PROBE_TOOL], generation=False)
    except Exception:  # jinja2 raises whatever the template's author wrote
        return ""
    if called.count(NAME) <= bare.count(NAME) or VALUE not in called:
        return "tool calls"
    return "" if RESULT in called else "results of tools"


def ignored(what: str, tokenizer: Any) -> ModelError:
    """The error for a template that leaves out what the policy must see; it names the model."""
    return ModelError(
        f"the chat template ignores {what}",
        where=f"model '{tokenizer.name_or_path}'" if getattr(tokenizer, "name_or_path", "") else "",
        why="the policy would never see them: the template's output does not change when they are added",
        fix=FIX,
    )
