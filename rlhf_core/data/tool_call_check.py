"""Tools as a row gives them, and calls held against them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.data.strict_json import NotJson, read_whole
from rlhf_core.data.tool_call_formats import RawToolCall
from rlhf_core.types.errors import DatasetError
from rlhf_core.types.messages import Tool, ToolCall, tool_name

SHOWN = 200
"""Characters of what a policy wrote that an error repeats."""
ALIASES = {"dict": "object", "float": "number", "tuple": "array"}
"""Names of types that some data sets (BFCL) take from Python -> JSON schema's."""


def read_tools(value: Any, where: str) -> tuple[Tool, ...]:
    """Tools in OpenAI's form, from that form, from functions alone, from Anthropic's, or from any of them as JSON text.

    Args:
        value: a list, or a text that holds one.
        where: the row, for messages.
    """
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
    """A schema with JSON schema's names of types; ``any`` is no type at all."""
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
    """Why parameters are no JSON schema of an object; "" if they are."""
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for

    if not isinstance(parameters, Mapping):
        return f"got {str(parameters)[:80]}"
    if parameters.get("type", "object") != "object":
        return f"type is {parameters['type']!r}"
    try:
        validator_for(parameters, _validator()).check_schema(dict(parameters))
    except SchemaError as error:
        return f"{error.json_path}: {error.message}"[:SHOWN]
    except RecursionError:
        return "it is nested too deeply"
    return ""


def _validator() -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator


def checked(call: RawToolCall, tools: Sequence[Tool], id: str, why: str = "") -> ToolCall:
    """A call as it may run, or with an error.

    Args:
        call: as the policy wrote it.
        tools: those of the prompt.
        id: what the call is to be called.
        why: added to the error of a call that is no JSON, such as that the turn was cut.
    """
    error = f"{call.error}{why}" if call.error else ""
    arguments: Any = call.arguments
    if not error:
        arguments, error = _arguments(call, tools)
    if error:
        return ToolCall(call.name, id=id, error=error, written=call.written or call.name)
    return ToolCall(call.name, arguments, id)


def _arguments(call: RawToolCall, tools: Sequence[Tool]) -> tuple[Any, str]:
    """(Arguments, what is wrong with them)."""
    tool = next((t for t in tools if tool_name(t) == call.name), None)
    if tool is None:
        names = ", ".join(map(tool_name, tools)) or "none"
        return None, f"there is no tool {call.name[:SHOWN]!r}; the tools are: {names}"
    parameters = tool["function"].get("parameters") or {}
    arguments = call.arguments if call.typed else _typed(call.arguments, parameters)
    if isinstance(arguments, str):  # OpenAI's form: JSON inside JSON
        try:
            arguments = read_whole(arguments)
        except NotJson as error:
            return None, f"the arguments of {call.name!r} are not valid JSON: {error}"
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        return None, f"the arguments of {call.name!r} must be an object, not {type(arguments).__name__}"
    return arguments, _violation(call.name, arguments, parameters)


def _violation(name: str, arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> str:
    """The first thing in which arguments break a schema; "" if nothing."""
    from jsonschema import ValidationError
    from jsonschema.exceptions import best_match
    from jsonschema.validators import validator_for
    from referencing import Registry

    try:
        validator = validator_for(parameters, _validator())
        nothing_fetched: Any = Registry()
        error: ValidationError | None = best_match(
            validator(parameters, registry=nothing_fetched).iter_errors(arguments)
        )
    except RecursionError:
        return f"the arguments of {name!r} are nested too deeply"
    except Exception as problem:  # a $ref that leads nowhere, a pattern that is none: the tool's fault, said to all
        return f"the arguments of {name!r} cannot be held against its schema: {type(problem).__name__}: {problem}"[:500]
    if error is None:
        return ""
    return f"the arguments of {name!r} break its schema at {error.json_path}: {error.message}"[:500]


def _typed(arguments: Mapping[str, str], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Texts read as JSON where the schema does not ask for a text, and left as they are where they are none."""
    properties: Mapping[str, Any] = parameters.get("properties") or {}
    row: dict[str, Any] = {}
    for name, text in arguments.items():
        kind = properties.get(name, {}).get("type", "string") if isinstance(properties.get(name), Mapping) else "string"
        try:
            row[name] = text if kind == "string" else read_whole(text)
        except NotJson:
            row[name] = text
    return row
