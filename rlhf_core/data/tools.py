"""The tools that a row offers, and the formats of calls that plugins read; nothing of a plugin is imported for it."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.data.jsonl import NotJson, read_whole
from rlhf_core.plugins.entry_points import Entry, disabled_distributions, entries_of, load_entry
from rlhf_core.types.errors import ConfigError, DatasetError, did_you_mean
from rlhf_core.types.messages import Tool, tool_name

ALIASES = {"dict": "object", "float": "number", "tuple": "array"}
"""Names of types that some data sets (BFCL) take from Python -> JSON schema's."""
PLUGIN = "rlhf-plugin-episodes"
"""Reads calls: its entry points win, and ``auto`` among them chooses a format and takes turns apart."""


def tool_formats() -> dict[str, Entry]:
    """Name -> entry of the group ``rlhf.tool_format``."""
    entries = entries_of("rlhf.tool_format", disabled_distributions())
    return {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.distribution == PLUGIN)}


def check_format(name: str) -> str:
    """The name of a format that exists."""
    known = sorted({"auto", *(formats := tool_formats())})
    if name not in known:
        fix = did_you_mean(name, known) or (f"one of {', '.join(known)}" if "auto" in formats else f"install {PLUGIN}")
        raise ConfigError(f"there is no tool format '{name}'", fix=f"{fix} (--set model.tool_format=auto)")
    return name


def load_format(name: str, where: str = "") -> Any:
    """What the entry point of a format names."""
    if (entry := tool_formats().get(name)) is None:
        raise ConfigError("no plugin here reads tool calls", where=where, fix=f"install {PLUGIN}, or enable it")
    return load_entry(entry, f"tool format '{name}'", f"reinstall {entry.distribution}")


def read_tools(value: Any, where: str) -> tuple[Tool, ...]:
    """Tools in OpenAI's form, from that form, from functions alone, from Anthropic's, or any of them as JSON text."""
    if isinstance(value, str):
        try:
            value = read_whole(value)
        except NotJson as error:
            raise DatasetError("tools are not valid JSON", where=where, why=str(error), fix="correct the row") from None
    rows: Sequence[Any] = value if isinstance(value, (list, tuple)) else [value]
    tools = tuple(_tool(row, where) for row in rows)
    name, count = Counter(map(tool_name, tools)).most_common(1)[0] if tools else ("", 0)
    if count > 1:
        raise DatasetError(
            f"two tools are called '{name}'",
            where=where,
            why="a call names its tool, so two tools cannot share a name",
            fix="rename one of them, or remove it",
        )
    return tools


def _tool(row: Any, where: str) -> Tool:
    outer: Mapping[str, Any] = row if isinstance(row, Mapping) else {}
    inner = outer.get("function", outer)
    function: Mapping[str, Any] = inner if isinstance(inner, Mapping) else {}
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        raise DatasetError(
            "a tool has no name",
            where=where,
            why=f"got {str(row)[:80]}",
            fix='write {"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}',
        )
    declared = function.get("parameters", function.get("input_schema"))
    parameters = schema({"type": "object", "properties": {}} if declared is None else declared)
    wrong = schema_error(parameters)
    if wrong:
        raise DatasetError(
            f"the parameters of tool '{name}' are not a JSON schema of an object",
            where=where,
            why=wrong,
            fix='write {"type": "object", "properties": {...}, "required": [...]}',
        )
    fields = {k: v for k, v in function.items() if k not in ("parameters", "input_schema") and v is not None}
    return {"type": "function", "function": {**fields, "parameters": parameters}}


def schema(value: Any) -> Any:
    """A schema with JSON schema's names of types; ``any`` is left out."""
    if isinstance(value, Mapping):
        row = {key: schema(item) for key, item in value.items()}
        kind = value.get("type")
        if isinstance(kind, str):
            row["type"] = ALIASES.get(kind, kind)
            if kind == "any":
                del row["type"]
        return row
    return [schema(item) for item in value] if isinstance(value, (list, tuple)) else value


def schema_error(parameters: Any) -> str:
    """Why parameters are not a JSON schema of an object; "" if they are."""
    if not isinstance(parameters, Mapping):
        return f"got {str(parameters)[:80]}"
    if parameters.get("type", "object") != "object":
        return f"type is {parameters['type']!r}"
    try:
        return _schema_error(json.dumps(parameters, default=repr))
    except RecursionError:
        return "it is nested too deeply"
    except (TypeError, ValueError) as error:  # a key that is not text, or a value that holds itself
        return f"it is not valid JSON: {error}"


@functools.lru_cache(maxsize=1024)  # rows share their tools, and a check takes milliseconds
def _schema_error(text: str) -> str:
    from jsonschema import Draft202012Validator, SchemaError
    from jsonschema.validators import validator_for

    parameters = json.loads(text)
    try:
        validator_for(parameters, Draft202012Validator).check_schema(parameters)
    except SchemaError as error:
        return f"{error.json_path}: {error.message}"[:200]
    return ""
