"""How models of different families write tool calls. A format takes a turn's text apart and never raises."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple, Protocol, runtime_checkable

from rlhf_core.data.jsonl import NotJson, read_value

ARGUMENTS = ("arguments", "parameters")
_ABOUT = ("name", "function", "type", "id", "index")
_MESSAGE = ("tool_calls", "tool_call", "function_call")
"""Keys under which a message of a service has its calls, beside its role and its text."""
_NAMED = re.compile(r'\{\s*"(?:(?:name|function|tool_calls?|function_call)"\s*:|type"\s*:\s*"function")')
_FENCE = re.compile(r"```(?:json|tool_call|tool_code)?[ \t]*\n(.*?)(?:\n```|$)", re.DOTALL)


class RawToolCall(NamedTuple):
    """One call as it stands in a turn, before it is checked against the tools.

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
    """False where every argument is a text, to be read by the tool's schema."""
    bare: bool = False
    """True where nothing beside it says that it is a call: it is one if it names a tool of the prompt, else text."""


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
    arguments = next((inner[key] for key in ARGUMENTS if key in inner), None)
    others = [] if {*ARGUMENTS} & {*inner} else [key for key in inner if key not in _ABOUT]
    error = f'the call has no "arguments", but {others[0][:80]!r}' if others else ""
    return RawToolCall(written, name, arguments, str(value.get("id") or ""), error)


def calls_of(value: Any, written: str) -> list[RawToolCall]:
    """The call of a decoded object, or the calls of a message without text of its own: ``{"tool_calls": [...]}``."""
    key = next((key for key in _MESSAGE if isinstance(value, dict) and key in value), "")
    if (
        not key
        or {*value} - {key, "role", "content"}
        or value.get("content")
        or not isinstance(value[key], list | dict)
    ):
        return [call_from(value, written)]
    return calls_from(value[key] if isinstance(value[key], list) else [value[key]])


def calls_from(values: list[Any]) -> list[RawToolCall]:
    """Calls from a decoded list of them."""
    calls = [call for one in values for call in calls_of(one, json.dumps(one, ensure_ascii=False))]
    return calls or [RawToolCall("[]", error="the list of calls is empty")]


def broken(written: str, error: NotJson) -> RawToolCall:
    """A call that is no JSON; its name where that can still be told, outside of whole objects in it first."""
    head = written[:1000]
    names = (re.search(r'"name"\s*:\s*"([^"\\]{1,128})"', text) for text in (re.sub(r"\{[^{}]*\}", "", head), head))
    name = next((name[1] for name in names if name), "")
    return RawToolCall(written, name, error=f"the call is not valid JSON: {error}")


def alone(call: RawToolCall) -> RawToolCall:
    """The call of an object that stands alone: an answer may be JSON too, and have a name."""
    return call._replace(bare=not call.name or call.arguments is None)


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
            calls_of_tag, at = self._calls(text, start + len(self.OPEN))
            calls += calls_of_tag
        return ParsedToolCalls(joined([*content, text[at:]]), calls)

    def _calls(self, text: str, body: int) -> tuple[list[RawToolCall], int]:
        try:
            value, end = read_value(text, body)
        except NotJson as error:
            opening = text.find(self.OPEN, body)
            opening = len(text) if opening < 0 else opening
            close = text.find(self.CLOSE, body, opening)
            written = text[body : opening if close < 0 else close].strip()
            return [broken(written, error)], opening if close < 0 else close + len(self.CLOSE)
        written = text[body:end].strip()
        after = self._BLANKS.match(text, end)
        blank = after.end() if after else end
        if text.startswith(self.CLOSE, blank):
            return calls_of(value, written), blank + len(self.CLOSE)
        if blank == len(text) or text.startswith(self.OPEN, blank):
            return calls_of(value, written), blank
        close = text.find(self.CLOSE, end)
        close = len(text) if close < 0 else close
        error = NotJson(f"more follows after the object: {text[end:close].strip()[:40]!r}")
        return [broken(text[body:close].strip(), error)], min(len(text), close + len(self.CLOSE))


class Plain:
    """For models of no known family: tagged as Hermes does, or a turn that is JSON alone, in a fence or not."""

    def take(self, text: str) -> ParsedToolCalls:
        """Text around a fence is content."""
        if Hermes.OPEN in text:
            return Hermes().take(text)
        fence = _FENCE.search(text)
        body = fence[1] if fence else text
        around = [text[: fence.start()], text[fence.end() :]] if fence else []
        calls, rest = _array(body) if body.lstrip().startswith("[") else objects(body)
        return ParsedToolCalls(joined([*around[:1], rest, *around[1:]]), calls)


def _array(text: str) -> tuple[list[RawToolCall], str]:
    """(Calls of one JSON array, the text after it)."""
    try:
        value, end = read_value(text)
    except NotJson as error:
        call = broken(text.strip(), error)
        return [call._replace(bare=not _NAMED.match(call.written.lstrip("[ \t\r\n")))], ""
    return [*map(alone, calls_from(value))], text[end:]


def objects(text: str) -> tuple[list[RawToolCall], str]:
    """(JSON objects one after the other, ``;``, ``,`` or blanks between them, the text after them)."""
    calls: list[RawToolCall] = []
    at = 0
    while True:
        rest = text[at:].lstrip(";, \t\r\n")
        at = len(text) - len(rest)
        if not rest.startswith("{"):
            return calls, rest
        try:
            value, end = read_value(text, at)
        except NotJson as error:
            return [*calls, broken(rest.strip(), error)._replace(bare=not _NAMED.match(rest))], ""
        calls += map(alone, calls_of(value, text[at:end]))
        at = end


def joined(pieces: list[str]) -> str:
    """Text around calls as one; the blanks beside calls are the format's."""
    return "\n".join(piece.strip() for piece in pieces if piece.strip())


class QwenXml:
    """``<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>``: Qwen 3 Coder, 3.5."""

    _BLOCK = re.compile(
        r"<tool_call>\s*(<function=.*?)(?:(?<=</function>)\s*</tool_call>|(?=<tool_call>\s*<function=)|\Z)", re.DOTALL
    )
    _FUNCTION = re.compile(r"<function=([^>\n]+)>(.*?)(</function>\s*\Z|\Z)", re.DOTALL)
    _PARAMETER = re.compile(
        r"<parameter=([^>\n]+)>\n?(.*?)\n?(</parameter>(?=\s*(?:<parameter=|\Z))|(?=<parameter=)|\Z)", re.DOTALL
    )

    def take(self, text: str) -> ParsedToolCalls:
        """Values are texts, typed by the schema later on; marks of other places inside them are text."""
        calls = [self._call(block[1]) for block in self._BLOCK.finditer(text)]
        return ParsedToolCalls(joined(self._BLOCK.split(text)[::2]), calls)

    def _call(self, block: str) -> RawToolCall:
        function = self._FUNCTION.match(block)
        if function is None:
            return RawToolCall(block.strip(), error="the call is not <function=NAME>...</function>")
        name, body, closed = function[1].strip(), function[2], function[3]
        parameters = list(self._PARAMETER.finditer(body))
        names = [p[1].strip() for p in parameters]
        error = ""
        if not closed or any(not p[3] for p in parameters):
            error = "the call has no end: </parameter> or </function></tool_call> is missing"
        elif len(set(names)) < len(names):
            error = f"the parameter {next(n for n in names if names.count(n) > 1)!r} occurs twice"
        elif self._PARAMETER.sub("", body).strip():
            error = "text stands between the parameters of the call"
        return RawToolCall(block.strip(), name, dict(zip(names, (p[2] for p in parameters))), error=error, typed=False)


class Llama3:
    """``{"name": ..., "parameters": {...}}`` alone or after ``<|python_tag|>``: Llama 3.1 to 3.3."""

    TAG = "<|python_tag|>"

    def take(self, text: str) -> ParsedToolCalls:
        """Objects one after the other; any other turn is text."""
        before, tag, body = text.partition(self.TAG)
        if not tag:
            before, body = "", text
        if tag and not body.lstrip().startswith("{"):
            error = "after <|python_tag|> stands no JSON object with name and parameters"
            return ParsedToolCalls(before, [RawToolCall(body.strip(), error=error)])
        calls, rest = objects(body)
        return ParsedToolCalls(joined([before, rest]), [c._replace(bare=c.bare and not tag) for c in calls])


class Mistral:
    """``[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]``, and ``[TOOL_CALLS]NAME[ARGS]{...}`` of later ones."""

    MARK, ARGS = "[TOOL_CALLS]", "[ARGS]"
    _NAME = re.compile(r"\s*([\w.-]{1,128})\s*(?:\[CALL_ID\]\s*(\w+)\s*)?(?:\[ARGS\])?\s*(?=\{)")

    def take(self, text: str) -> ParsedToolCalls:
        """Everything after the mark is calls."""
        before, mark, _ = text.partition(self.MARK)
        calls: list[RawToolCall] = []
        content, at = [before], len(before) + len(mark)
        while mark and at <= len(text):
            calls_of_block, rest, at = self._block(text, at)
            calls += calls_of_block
            content.append(rest)
        return ParsedToolCalls(joined(content), calls)

    def _block(self, text: str, at: int) -> tuple[list[RawToolCall], str, int]:
        """(calls, text that is none, where the next block begins) of what follows a mark."""
        named = self._NAME.match(text, at)
        try:
            value, end = read_value(text, named.end() if named else at)
        except NotJson as error:
            end = text.find(self.MARK, at)
            written = text[at : end if end >= 0 else len(text)].strip()
            call = broken(written, error)._replace(**({"name": named[1]} if named else {}))
            return [call], "", end + len(self.MARK) if end >= 0 else len(text) + 1
        if named:
            calls = [RawToolCall(text[at:end].strip(), named[1], value, named[2] or "")]
        elif isinstance(value, list):
            calls = calls_from(value)
        else:
            calls = calls_of(value, text[at:end].strip())
        following = text.find(self.MARK, end)
        if following >= 0:
            return calls, text[end:following], following + len(self.MARK)
        return calls, text[end:], len(text) + 1
