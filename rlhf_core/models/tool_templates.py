"""What a chat template is given of turns with calls, whether it writes them, and which format reads them back."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.data.tool_calls import CORE, ParsedToolCalls, ToolFormat
from rlhf_core.plugins.entry_points import disabled_distributions, normalise, scan
from rlhf_core.types.errors import ConfigError, ModelError, PluginError, did_you_mean
from rlhf_core.types.messages import Message, Tool, content_of

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


def as_given(message: Message, template: str) -> dict[str, Any]:
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


def fill(tokenizer: Any, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool], *, generation: bool) -> str:
    """The filled template."""
    options: dict[str, Any] = {"tools": [dict(tool) for tool in tools]} if tools else {}

    def filled(turns: Sequence[Mapping[str, Any]]) -> str:
        given = [dict(turn) for turn in turns]
        return str(tokenizer.apply_chat_template(given, tokenize=False, add_generation_prompt=generation, **options))

    try:
        return filled(messages)
    except TypeError:
        if not any(m.get("tool_calls") for m in messages):
            raise
        return filled(
            [{**m, "tool_calls": [*map(_with_text, m["tool_calls"])]} if m.get("tool_calls") else m for m in messages]
        )


def unwritten(tokenizer: Any, *, calls: bool) -> str:
    """What the template leaves out: ``tools``, ``tool calls`` or ``results of tools``; "" if nothing, or if it refuses
    them.
    """
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


GROUP = "rlhf.tool_format"
log = logging.getLogger("rlhf.models")


def installed() -> dict[str, Any]:
    """Name -> entry point of formats that distributions add; the core's own names are the core's."""
    disabled = set(map(normalise, disabled_distributions()))
    points = {p.name: p for name, _, p in scan() if p.group == GROUP and name not in disabled}
    return {name: point for name, point in sorted(points.items()) if name not in CORE}


def check_format(name: str) -> str:
    """The name of a format that exists; nothing of a distribution is imported."""
    if name != "auto" and name not in (known := ("auto", *CORE, *installed())):
        fix = did_you_mean(name, known) or f"one of {', '.join(known)}"
        raise ConfigError(f"there is no tool format '{name}'", fix=f"{fix} (--set model.tool_format=auto)")
    return name


def format_named(name: str) -> ToolFormat:
    """A format by its name."""
    if check_format(name) in CORE:
        return CORE[name]
    point, step = installed()[name], "loading it"
    try:
        made = point.load()
        made = made() if isinstance(made, type) else made
        step = "take('no call')"
        taken = made.take("no call") if isinstance(made, ToolFormat) else None
    except Exception as error:  # a plugin's module may do anything
        why = f"{step} raised {type(error).__name__}: {error}"
        raise PluginError(f"tool format '{name}' cannot be used", why=why, where=point.value) from error
    if isinstance(taken, ParsedToolCalls):
        return made
    why = "it has no method take(text)"
    if isinstance(made, ToolFormat):
        why = f"take() returned {type(taken).__name__}, expected rlhf_core.models.ParsedToolCalls"
    raise PluginError(f"tool format '{name}' cannot be used", why=why, where=point.value)


def choose_format(tokenizer: Any, name: str = "auto") -> ToolFormat:
    """The format of a name, or that of the tokenizer's chat template."""
    if name != "auto":
        return format_named(name)
    written = _written(tokenizer)
    for candidate in (*installed(), *CORE) if written else ():
        try:
            tool_format = format_named(candidate)
            if reads(tool_format, written):
                return tool_format
        except Exception as error:  # a distribution's, which nobody has asked for
            log.warning("tool format '%s' is left out: %s", candidate, error)
    if written:
        log.warning(
            "no installed tool format reads calls as the chat template writes them (%r); calls are read in the plain "
            "form, JSON alone or between <tool_call> tags; an entry point of the group rlhf.tool_format adds one",
            written[:80],
        )
    return CORE["plain"]


def reads(tool_format: ToolFormat, written: str) -> bool:
    """Whether a format reads the probe's call."""
    calls = tool_format.take(written).calls
    return [(c.name, c.arguments, c.error) for c in calls] in (
        [(NAME, {KEY: VALUE}, "")],
        [(NAME, f'{{"{KEY}": "{VALUE}"}}', "")],
    )


def _written(tokenizer: Any) -> str:
    """The probe's call as the chat template writes it, without what surrounds a turn; "" if it writes none."""
    if not template_text(tokenizer):
        return ""
    try:
        opening = fill(tokenizer, [ASKED], [PROBE_TOOL], generation=True)
        whole = fill(tokenizer, [ASKED, CALLING], [PROBE_TOOL], generation=False)
    except Exception:  # jinja2 raises whatever the template's author wrote
        return ""
    common = next((n for n, (x, y) in enumerate(zip(opening, whole)) if x != y), min(len(opening), len(whole)))
    turn = whole[common:]
    for end in (tokenizer.eos_token, "<|im_end|>", "<|eot_id|>", "<|eom_id|>"):
        turn = turn.partition(end)[0] if end else turn
    from rlhf_core.data.tool_call_parser import split_reasoning

    turn = split_reasoning(turn)[1]
    return turn.strip() if NAME in turn else ""
