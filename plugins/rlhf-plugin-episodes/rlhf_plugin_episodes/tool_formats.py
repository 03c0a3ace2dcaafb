"""How Llama 3, Mistral and Qwen 3 Coder write tool calls."""

from __future__ import annotations

import re

from rlhf_core.data.jsonl import NotJson, read_value
from rlhf_core.data.tool_calls import broken, call_from, calls_from, joined, objects
from rlhf_core.models import ParsedToolCalls, RawToolCall

_NAMED = re.compile(r'\{\s*"(name|function)"\s*:')


class QwenXml:
    """``<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>``: Qwen 3 Coder, 3.5."""

    _BLOCK = re.compile(r"<tool_call>\s*(<function=.*?)(?:</tool_call>|(?=<tool_call>)|$)", re.DOTALL)
    _FUNCTION = re.compile(r"<function=([^>\n]+)>(.*?)(</function>|$)", re.DOTALL)
    _PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?(</parameter>|(?=<parameter=)|$)", re.DOTALL)

    def take(self, text: str) -> ParsedToolCalls:
        """Values are texts, typed by the schema later on."""
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
            error = "the call has no end: </parameter> or </function> is missing"
        elif len(set(names)) < len(names):
            error = f"the parameter {next(n for n in names if names.count(n) > 1)!r} occurs twice"
        elif self._PARAMETER.sub("", body).strip() or block[function.end() :].strip():
            error = "text stands between the parameters of the call, or after it"
        return RawToolCall(block.strip(), name, dict(zip(names, (p[2] for p in parameters))), error=error, typed=False)


class Llama3:
    TAG = "<|python_tag|>"

    def take(self, text: str) -> ParsedToolCalls:
        """Objects one after the other, ``;`` or blanks between them; any other turn is text."""
        before, tag, body = text.partition(self.TAG)
        if not tag:
            before, body = "", text
        if not tag and not _NAMED.match(body.lstrip()):
            return ParsedToolCalls(text, [])
        if tag and not body.lstrip().startswith("{"):
            error = "after <|python_tag|> stands no JSON object with name and parameters"
            return ParsedToolCalls(before, [RawToolCall(body.strip(), error=error)])
        calls, rest = objects(body, ";,")
        return ParsedToolCalls(joined([before, rest]), calls)


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
            found, rest, at = self._block(text, at)
            calls += found
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
            calls = [call_from(value, text[at:end].strip())]
        following = text.find(self.MARK, end)
        if following >= 0:
            return calls, text[end:following], following + len(self.MARK)
        return calls, text[end:], len(text) + 1
