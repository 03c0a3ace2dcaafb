"""Which format a model writes its calls in: the first that reads a call back from what its chat template writes."""

from __future__ import annotations

import logging
from typing import Any

from rlhf_core.data.tool_call_formats import CORE, ParsedToolCalls, ToolFormat
from rlhf_core.models.tool_templates import ASKED, CALLING, KEY, NAME, PROBE_TOOL, VALUE, fill, template_text
from rlhf_core.plugins.disabled import disabled_distributions, normalise
from rlhf_core.plugins.entry_points import scan
from rlhf_core.types.errors import ConfigError, PluginError, did_you_mean

GROUP = "rlhf.tool_format"
log = logging.getLogger("rlhf.models")


def installed() -> dict[str, Any]:
    """Name -> entry point of formats that distributions add; the core's own names are the core's."""
    disabled = set(map(normalise, disabled_distributions()))
    points = {p.name: p for name, _, p in scan() if p.group == GROUP and name not in disabled}
    return {name: point for name, point in sorted(points.items()) if name not in CORE}


def known_formats() -> tuple[str, ...]:
    """Every name that a format may be given by."""
    return ("auto", *CORE, *installed())


def check_format(name: str) -> str:
    """The name of a format that exists; nothing of a distribution is imported.

    Raises:
        ConfigError: there is none of that name.
    """
    known = known_formats() if name != "auto" else (name,)
    if name not in known:
        fix = did_you_mean(name, known) or f"one of {', '.join(known)}"
        raise ConfigError(f"there is no tool format '{name}'", fix=f"{fix} (--set model.tool_format=auto)")
    return name


def format_named(name: str) -> ToolFormat:
    """A format by its name.

    Raises:
        ConfigError: there is none of that name.
        PluginError: what a distribution names cannot be imported, or takes no text apart.
    """
    if check_format(name) in CORE:
        return CORE[name]
    points = installed()
    try:
        made = points[name].load()
        made = made() if isinstance(made, type) else made
    except Exception as error:  # a plugin's module may do anything
        raise PluginError(
            f"tool format '{name}' cannot be loaded", why=f"{type(error).__name__}: {error}", where=points[name].value
        ) from error
    if not isinstance(made, ToolFormat):
        raise PluginError(f"tool format '{name}' has no method take(text)", where=points[name].value)
    try:
        taken = made.take("no call")
        good = isinstance(taken, ParsedToolCalls)
        why = "" if good else f"take() returned {type(taken).__name__}, expected rlhf_core.models.ParsedToolCalls"
    except Exception as error:
        good, why = False, f"take('no call') raised {type(error).__name__}: {error}"
    if not good:
        raise PluginError(f"tool format '{name}' cannot be used", why=why, where=points[name].value)
    return made


def choose_format(tokenizer: Any, name: str = "auto") -> ToolFormat:
    """The format of a name, or that of the tokenizer's chat template.

    Raises:
        ConfigError: there is none of that name.
        PluginError: as in :func:`format_named`.
    """
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
    turn = whole.removeprefix(opening) if whole.startswith(opening) else whole[len(_common(opening, whole)) :]
    for end in (tokenizer.eos_token, "<|im_end|>", "<|eot_id|>", "<|eom_id|>"):
        turn = turn.partition(end)[0] if end else turn
    from rlhf_core.data.tool_call_parser import split_reasoning

    turn = split_reasoning(turn)[1]
    return turn.strip() if NAME in turn else ""


def _common(a: str, b: str) -> str:
    size = next((n for n, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return a[:size]
