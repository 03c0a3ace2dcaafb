"""The arguments of a call, checked against the schema of its tool."""

from __future__ import annotations

import ast
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.data import Tool
from rlhf_core.data.jsonl import NotJson, read_whole
from rlhf_plugin_episodes.tool_formats import RawToolCall

SHOWN = 200
"""Characters of what a policy wrote that an error repeats."""
WORDS: Mapping[str, bool | None] = {"True": True, "False": False, "None": None}
"""What Qwen's chat templates write for JSON's ``true``, ``false`` and ``null``."""
MOST_ROWS = 256
"""Combinations of readings that are checked against a whole schema."""


def read_arguments(call: RawToolCall, tools: Sequence[Tool]) -> tuple[Any, str]:
    """(Arguments, what is wrong with them)."""
    tool = next((t for t in tools if t["function"]["name"] == call.name), None)
    if tool is None:
        names = ", ".join(str(t["function"]["name"]) for t in tools) or "none"
        return None, f"there is no tool {call.name[:SHOWN]!r}; the tools are: {names}"
    arguments = call.arguments
    if isinstance(arguments, str):  # OpenAI's form: JSON inside JSON
        try:
            arguments = read_whole(arguments)
        except NotJson as error:
            return None, f"the arguments of {call.name!r} are not valid JSON: {error}"
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        return None, f"the arguments of {call.name!r} must be an object, not {type(arguments).__name__}"
    return _check_schema(call, arguments, tool["function"].get("parameters") or {})


def _check_schema(call: RawToolCall, arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> tuple[Any, str]:
    """(Arguments as a schema takes them, the first thing in which they break it; "" if nothing)."""
    from jsonschema import Draft202012Validator, ValidationError
    from jsonschema.exceptions import best_match
    from jsonschema.validators import validator_for
    from referencing import Registry

    whose = f"the arguments of {call.name!r}"
    nothing_fetched: Any = Registry()
    try:
        parameters = _json_schema(parameters)
        validator = validator_for(parameters, Draft202012Validator)(parameters, registry=nothing_fetched)
        arguments = arguments if call.typed else _typed(arguments, validator)
        error: ValidationError | None = best_match(validator.iter_errors(arguments))
    except RecursionError:
        return None, f"{whose} are nested too deeply"
    except Exception as problem:  # a $ref that leads nowhere, a pattern that is none: the tool's fault, said to all
        return None, f"{whose} cannot be checked against its schema: {type(problem).__name__}: {problem}"[:500]
    if error is None:
        return arguments, ""
    return None, f"{whose} break its schema at {error.json_path}: {error.message}"[:500]


def _json_schema(part: Any) -> Any:
    """A schema that says OpenAPI's ``nullable`` in JSON schema's words."""
    if isinstance(part, Mapping):
        row = {key: _json_schema(value) for key, value in part.items()}
        return {"anyOf": [row, {"type": "null"}]} if row.get("nullable") is True else row
    return [_json_schema(value) for value in part] if isinstance(part, (list, tuple)) else part


def _typed(texts: Mapping[str, str], validator: Any) -> dict[str, Any]:
    """Each text as the value that the schema takes, whatever keywords say so; JSON goes before the text itself."""
    readings: list[list[Any]] = []
    for name, text in texts.items():
        values = _readings(text)
        faults = [
            sum([*error.absolute_path][:1] == [name] for error in validator.iter_errors({name: value}))
            for value in (values if len(values) > 1 else ())
        ]
        readings.append([v for v, count in zip(values, faults) if count == min(faults)] or values)
    rows = [dict(zip(texts, values)) for values in itertools.islice(itertools.product(*readings), MOST_ROWS)]
    return next((row for row in rows if len(rows) > 1 and validator.is_valid(row)), rows[0])


def _readings(text: str) -> list[Any]:
    """What a text may stand for. A template writes a string without quotes, so that a quoted one has its quotes."""
    if (word := text.strip()) in WORDS:
        return [WORDS[word], text]
    try:
        value = read_whole(text)
    except NotJson:
        return [*_python(word), text]
    return [text] if isinstance(value, str) else [value, text]


def _python(text: str) -> list[Any]:
    """The list or object of a text that a template wrote as Python prints it."""
    try:
        return [json.loads(json.dumps(ast.literal_eval(text), allow_nan=False))] if text[:1] in ("[", "{") else []
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return []
