"""A turn's text -> its reasoning, its content and its calls. Nothing that a policy writes raises or gets lost."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

from rlhf_core.config import PluginError
from rlhf_core.data import Tool, ToolCall
from rlhf_core.data.tools import check_format, load_format, tool_formats
from rlhf_core.models.tool_templates import ASKED, CALLING, KEY, NAME, PROBE_TOOL, VALUE, fill, template_text
from rlhf_core.types.messages import AssistantTurn, tool_name
from rlhf_plugin_episodes.tool_arguments import read_arguments
from rlhf_plugin_episodes.tool_formats import ParsedToolCalls, Plain, RawToolCall, ToolFormat, joined

log = logging.getLogger("rlhf.models")
ID = re.compile(r"[A-Za-z0-9]{9}\Z")
"""What every chat template takes as the id of a call; Mistral's takes nothing else."""
THOUGHT = re.compile(r"\A\s*(?:<think>)?(.*?)</think>", re.DOTALL)
UNFINISHED = re.compile(r"\A\s*<think>(.*)\Z", re.DOTALL)
LAST = ("hermes", "plain")
"""Formats of many families: they are tried on a chat template after all others."""


def turn_reader(tokenizer: Any, name: str) -> Callable[..., AssistantTurn]:
    """:func:`parse_turn` with the format of a name, or of a tokenizer's chat template; the core's entry to it."""
    return functools.partial(parse_turn, choose_format(tokenizer, name))


def parse_turn(
    tool_format: ToolFormat, text: str, tools: Sequence[Tool], *, cut: bool = False, earlier: int = 0
) -> AssistantTurn:
    """Take apart what a policy wrote."""
    reasoning, content = split_reasoning(text)
    if not tools:
        return AssistantTurn(content, (), reasoning)
    taken = tool_format.take(content)
    names = {*map(tool_name, tools)}
    written = [call for call in taken.calls if not call.bare or call.name in names]
    others = [call.written for call in taken.calls if call.bare and call.name not in names]
    if not written:
        return AssistantTurn(content, (), reasoning)
    why = "; the turn was cut at its limit of tokens" if cut else ""
    calls: list[ToolCall] = []
    ids: set[str] = set()
    for n, call in enumerate(written):
        name = call.id if ID.match(call.id) and call.id not in ids else f"call{earlier + n:05d}"
        ids.add(name)
        calls.append(checked(call, tools, name, why if n == len(written) - 1 else ""))
    return AssistantTurn(joined([taken.content, *others]) if others else taken.content, tuple(calls), reasoning)


def split_reasoning(text: str) -> tuple[str, str]:
    """(What stands before ``</think>`` at the beginning, the rest); reasoning that never ends is all there is."""
    if match := THOUGHT.match(text):
        return match[1].strip(), text[match.end() :].lstrip("\n")
    if match := UNFINISHED.match(text):
        return match[1].strip(), ""
    return "", text


def checked(call: RawToolCall, tools: Sequence[Tool], id: str, why: str = "") -> ToolCall:
    """A call as it may run, or with an error."""
    error = f"{call.error}{why}" if call.error else ""
    arguments: Any = call.arguments
    if not error:
        arguments, error = read_arguments(call, tools)
    if error:
        return ToolCall(call.name, id=id, error=error, written=call.written or call.name)
    return ToolCall(call.name, arguments, id)


def format_named(name: str) -> ToolFormat:
    made, step = load_format(check_format(name)), "making it"
    try:
        made = made() if isinstance(made, type) else made
        step = "take('no call')"
        taken = made.take("no call") if isinstance(made, ToolFormat) else None
    except (Exception, SystemExit) as error:  # a plugin's code may do anything
        why = f"{step} raised {type(error).__name__}: {error}"
        raise PluginError(f"tool format '{name}' cannot be used", why=why, where=tool_formats()[name].where) from error
    if isinstance(taken, ParsedToolCalls):
        return made
    why = "it has no method take(text)"
    if isinstance(made, ToolFormat):
        why = f"take() returned {type(taken).__name__}, expected rlhf_plugin_episodes.tool_formats.ParsedToolCalls"
    raise PluginError(f"tool format '{name}' cannot be used", why=why, where=tool_formats()[name].where)


def choose_format(tokenizer: Any, name: str = "auto") -> ToolFormat:
    """The format of a name, or that of the tokenizer's chat template."""
    if name != "auto":
        return format_named(name)
    written = _written(tokenizer)
    for candidate in sorted(tool_formats().keys() - {"auto"}, key=lambda n: (n in LAST, n)) if written else ():
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
    return Plain()


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
    turn = split_reasoning(turn)[1]
    return turn.strip() if NAME in turn else ""
