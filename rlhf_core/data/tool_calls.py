"""How models of different families write tool calls. A format takes a turn's text apart and never raises."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from rlhf_core.data.jsonl import NotJson, read_value, read_whole
from rlhf_core.types.errors import DatasetError
from rlhf_core.types.messages import Tool, ToolCall, tool_name

ARGUMENTS = ("arguments", "parameters")
_NAMED = re.compile(r'\{\s*"(name|function)"\s*:')
_FENCE = re.compile(r"```(?:json|tool_call|tool_code)?[ \t]*\n(.*?)(?:\n```|$)", re.DOTALL)


class RawToolCall(NamedTuple):
    """One call as it stands in a turn, before it is held against the tools.

    Example:
        RawToolCall('{"name": "add", "arguments": {"a": 1}}', "add", {"a": 1})
    """

    written: str
    name: str = ""
    arguments: Any = None
    """Whatever stands where arguments should; a text may be JSON itself."""
    id: str = ""
    error: str = ""
    typed: bool = True
    """False where every argument is a text, to be read by the type in the tool's schema."""


class ParsedToolCalls(NamedTuple):
    """A turn taken apart; together it holds everything that was written."""

    content: str
    """All text outside of calls, in its order."""
    calls: list[RawToolCall]


@runtime_checkable
class ToolFormat(Protocol):
    """How one family of models writes calls; entry-point group ``rlhf.tool_format`` names such objects."""

    def take(self, text: str) -> ParsedToolCalls:
        """Take a turn's text apart, special tokens included, end token not; what cannot be read has an ``error``."""
        ...


def call_from(value: Any, written: str) -> RawToolCall:
    """A call from a decoded object: ``{"name", "arguments" | "parameters"}``, or OpenAI's with ``function``."""
    if not isinstance(value, dict):
        return RawToolCall(written, error=f"a call is an object with name and arguments, not {type(value).__name__}")
    function = value.get("function")
    inner: dict[str, Any] = function if isinstance(function, dict) else value
    name = inner.get("name", inner.get("function"))
    if not isinstance(name, str) or not name:
        return RawToolCall(written, error='the call has no "name"')
    arguments = next((inner[key] for key in ARGUMENTS if key in inner), {})
    return RawToolCall(written, name, arguments, str(value.get("id") or ""))


def calls_from(values: list[Any]) -> list[RawToolCall]:
    """Calls from a decoded list of them."""
    calls = [call_from(one, json.dumps(one, ensure_ascii=False)) for one in values]
    return calls or [RawToolCall("[]", error="the list of calls is empty")]


def broken(written: str, error: NotJson) -> RawToolCall:
    """A call that is no JSON; its name where that can still be told."""
    name = re.search(r'"name"\s*:\s*"([^"\\]{1,128})"', written[:1000])
    return RawToolCall(written, name[1] if name else "", error=f"the call is not valid JSON: {error}")


class Hermes:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``: Hermes, Qwen 2.5 and 3, and many others."""

    OPEN, CLOSE = "<tool_call>", "</tool_call>"
    _BLANKS = re.compile(r"\s*")

    def take(self, text: str) -> ParsedToolCalls:
        """Every ``<tool_call>`` is a call; one inside a JSON string is a part of that string."""
        calls: list[RawToolCall] = []
        content: list[str] = []
        at = 0
        while (start := text.find(self.OPEN, at)) >= 0:
            content.append(text[at:start])
            call, at = self._call(text, start + len(self.OPEN))
            calls.append(call)
        return ParsedToolCalls(joined([*content, text[at:]]), calls)

    def _call(self, text: str, body: int) -> tuple[RawToolCall, int]:
        try:
            value, end = read_value(text, body)
        except NotJson as error:
            opening = text.find(self.OPEN, body)
            opening = len(text) if opening < 0 else opening
            close = text.find(self.CLOSE, body, opening)
            written = text[body : opening if close < 0 else close].strip()
            return broken(written, error), opening if close < 0 else close + len(self.CLOSE)
        written = text[body:end].strip()
        after = self._BLANKS.match(text, end)
        blank = after.end() if after else end
        if text.startswith(self.CLOSE, blank):
            return call_from(value, written), blank + len(self.CLOSE)
        if blank == len(text) or text.startswith(self.OPEN, blank):
            return call_from(value, written), blank
        close = text.find(self.CLOSE, end)
        close = len(text) if close < 0 else close
        error = NotJson(f"more follows after the object: {text[end:close].strip()[:40]!r}")
        return broken(text[body:close].strip(), error), min(len(text), close + len(self.CLOSE))


class Plain:
    """For models of no known family: tagged as Hermes does, or a turn that is JSON alone, in a fence or not."""

    def take(self, text: str) -> ParsedToolCalls:
        """Text around a fence is content."""
        if Hermes.OPEN in text:
            return Hermes().take(text)
        fence = _FENCE.search(text)
        body = fence[1] if fence else text
        start = body.lstrip()
        if not _NAMED.match(start.lstrip("[ \t\r\n") if start.startswith("[") else start):
            return ParsedToolCalls(text, [])
        around = [text[: fence.start()], text[fence.end() :]] if fence else []
        calls, rest = _array(body) if start.startswith("[") else objects(body, ";,")
        return ParsedToolCalls(joined([*around[:1], rest, *around[1:]]), calls)


def _array(text: str) -> tuple[list[RawToolCall], str]:
    """(Calls of one JSON array, the text after it)."""
    try:
        value, end = read_value(text)
    except NotJson as error:
        return [broken(text.strip(), error)], ""
    return calls_from(value), text[end:]


def objects(text: str, between: str) -> tuple[list[RawToolCall], str]:
    """(JSON objects one after the other, the text after them)."""
    calls: list[RawToolCall] = []
    at = 0
    while True:
        rest = text[at:].lstrip(between + " \t\r\n")
        at = len(text) - len(rest)
        if not rest.startswith("{"):
            return calls, rest
        try:
            value, end = read_value(text, at)
        except NotJson as error:
            return [*calls, broken(rest.strip(), error)], ""
        calls.append(call_from(value, text[at:end]))
        at = end


def joined(pieces: list[str]) -> str:
    """Text around calls as one; the blanks beside calls are the format's."""
    return "\n".join(piece.strip() for piece in pieces if piece.strip())


CORE: dict[str, ToolFormat] = {"hermes": Hermes(), "plain": Plain()}
"""The core's formats, tried on a chat template in this order, after those of distributions."""


SHOWN = 200
"""Characters of what a policy wrote that an error repeats."""
ALIASES = {"dict": "object", "float": "number", "tuple": "array"}
"""Names of types that some data sets (BFCL) take from Python -> JSON schema's."""


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
    if not isinstance(parameters, Mapping):
        return f"got {str(parameters)[:80]}"
    if parameters.get("type", "object") != "object":
        return f"type is {parameters['type']!r}"
    try:
        return _schema_error(json.dumps(parameters, default=repr))
    except RecursionError:
        return "it is nested too deeply"
    except (TypeError, ValueError) as error:  # a key that is no text, or a value that holds itself
        return f"it is no JSON: {error}"


@functools.lru_cache(maxsize=1024)  # rows share their tools, and a check takes milliseconds
def _schema_error(text: str) -> str:
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for

    parameters = json.loads(text)
    try:
        validator_for(parameters, _validator()).check_schema(parameters)
    except SchemaError as error:
        return f"{error.json_path}: {error.message}"[:SHOWN]
    return ""


def _validator() -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator


def checked(call: RawToolCall, tools: Sequence[Tool], id: str, why: str = "") -> ToolCall:
    """A call as it may run, or with an error."""
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
