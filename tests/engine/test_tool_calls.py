"""Tool calls as models write them: nothing raises, nothing is lost, and what is wrong is said to the policy."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from rlhf_core.data.tools import read_tools, schema_error
from rlhf_core.types.errors import DatasetError
from rlhf_core.types.messages import AssistantTurn, ToolCall, message_text
from rlhf_plugin_episodes.tool_calls import format_named, parse_turn

ADD = {
    "name": "add",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "s": {"type": "string"}},
        "required": ["a"],
    },
}
TOOLS = read_tools([ADD, {"name": "now", "description": "What time it is."}], "test")
FORMATS = ("mistral", "qwen_xml", "hermes", "llama3", "plain")
DEEP = "[" * 100_000


def write(name: str, calls: list[tuple[str, Any]]) -> str:
    """Calls as a model of a family writes them."""
    texts = [json.dumps({"name": n, "arguments": a}, ensure_ascii=False) for n, a in calls]
    if name == "mistral":
        return "[TOOL_CALLS][" + ", ".join(texts) + "]"
    if name == "llama3":
        return "; ".join(t.replace('"arguments"', '"parameters"', 1) for t in texts)
    if name == "plain":
        return f"```json\n[{', '.join(texts)}]\n```"
    if name == "qwen_xml":
        inner = [
            "".join(
                f"<parameter={k}>\n{v if isinstance(v, str) else json.dumps(v)}\n</parameter>\n" for k, v in a.items()
            )
            for _, a in calls
        ]
        return "\n".join(
            f"<tool_call>\n<function={n}>\n{body}</function>\n</tool_call>" for (n, _), body in zip(calls, inner)
        )
    return "\n".join(f"<tool_call>\n{t}\n</tool_call>" for t in texts)


def parse(text: str, name: str = "hermes", **options: Any) -> AssistantTurn:
    return parse_turn(format_named(name), text, TOOLS, **options)


@pytest.mark.parametrize("name", FORMATS)
def test_parallel_calls_keep_their_order_and_their_arguments(name: str) -> None:
    hard = 'ä😀 "quoted" {nested: [braces]} \\ back'
    text = write(name, [("add", {"a": 1, "s": hard}), ("now", {}), ("add", {"a": 2})])
    calls = parse(text, name).calls
    assert [(c.name, dict(c.arguments), c.error) for c in calls] == [
        ("add", {"a": 1, "s": hard}, ""),
        ("now", {}, ""),
        ("add", {"a": 2}, ""),
    ]
    assert len({c.id for c in calls}) == 3
    assert parse(text, name, earlier=7).calls[0].id == "call00007"


@pytest.mark.parametrize("name", FORMATS)
def test_an_answer_is_no_call(name: str) -> None:
    for text in ("It is 4.", '{"answer": 4}', "use {braces} and [lists]", "```python\nprint(4)\n```", ""):
        assert parse(text, name) == AssistantTurn(text)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ('{"name": "add", "arguments": {"a": 1}', "not valid JSON"),
        ("add(1)", "not valid JSON"),
        ("", "not valid JSON"),
        ('{"name": "add", "arguments": {"a": NaN}}', "NaN is not a JSON number"),
        ('{"name": "add", "arguments": {"a": 1, "a": 2}}', "the key 'a' occurs twice"),
        ('{"name": "add", "arguments": {"a": "\\ud800"}}', "half of a character"),
        ('{"name": "add", "arguments": {"a": ' + "9" * 5000 + "}}", "not valid JSON"),
        (DEEP, "nested too deeply"),
        ('{"name": "add", "arguments": {"a": 1}} and more', "more follows after the object: 'and more'"),
        ('{"arguments": {}}', 'the call has no "name"'),
        ("[1]", "a call is an object with name and arguments, not list"),
        ('{"name": "subtract", "arguments": {}}', "there is no tool 'subtract'; the tools are: add, now"),
        ('{"name": "add", "arguments": {}}', "break its schema at $: 'a' is a required property"),
        ('{"name": "add", "arguments": {"a": "1"}}', "break its schema at $.a: '1' is not of type 'integer'"),
        ('{"name": "add", "arguments": [1]}', "must be an object, not list"),
        ('{"name": "add", "arguments": "{\\"a\\": "}', "the arguments of 'add' are not valid JSON"),
    ],
)
def test_a_malformed_call_is_an_error_that_the_policy_can_be_shown(call: str, error: str) -> None:
    turn = parse(f"First.<tool_call>{call}</tool_call>" + write("hermes", [("now", {})]) + "Last.")
    bad, good = turn.calls
    assert error in bad.error, bad
    assert not bad.ok
    assert good == ToolCall("now", {}, "call00001")
    assert turn.content == "First.\nLast."
    assert bad.written.strip() in message_text(turn.message), "what was written is not lost"


def test_json_inside_json_is_read_as_openai_writes_it() -> None:
    (call,) = parse('<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>').calls
    assert (call.arguments, call.ok) == ({"a": 1}, True)


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_that_is_cut_by_its_length_says_so(name: str) -> None:
    whole = write(name, [("add", {"a": 123456})])
    for at in range(whole.index("add") + 4, len(whole) - (30 if name == "qwen_xml" else 15)):
        (call,) = parse(whole[:at], name, cut=True).calls
        if not call.ok and "not valid" in call.error:
            assert "the turn was cut at its limit of tokens" in call.error
    cut = parse(whole[: whole.index("123")], name, cut=True).calls[0]
    assert not cut.ok
    assert "cut at its limit" in cut.error


def test_reasoning_is_apart_and_calls_in_it_do_not_run() -> None:
    turn = parse("<think>\nI could <tool_call>{}</tool_call>\n</think>\n\nDone.")
    assert turn == AssistantTurn("Done.", (), "I could <tool_call>{}</tool_call>")
    assert parse("it began in the prompt</think>4").reasoning == "it began in the prompt"
    assert parse("<think>never ends <tool_call>{}").calls == ()
    assert turn.message == {"role": "assistant", "content": "Done.", "reasoning": turn.reasoning}


def test_without_tools_a_turn_is_its_text() -> None:
    text = write("hermes", [("add", {"a": 1})])
    assert parse_turn(format_named("hermes"), text, ()) == AssistantTurn(text)


def test_mistral_writes_names_before_arguments_too() -> None:
    turn = parse('Let me see.[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{"a": "x"}', "mistral")
    assert [(c.id, c.ok) for c in turn.calls] == [("call00000", True), ("abcdefghi", False)]
    assert turn.content == "Let me see."


PIECES = (
    *(
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|python_tag|>",
        "```json\n",
        "\n```",
        "<function=add>",
    ),
    *(
        "</function>",
        "<parameter=a>",
        "</parameter>",
        '{"name": "add"',
        ', "arguments": ',
        '{"a": 1}',
        "}",
        "{",
        "[",
        "]",
    ),
    *('"', "\\", "\\ud83d", "😀", "\ud800", "\x00", " ", "\n", ";", ",", "null", "1e999", "<think>", "</think>", "ok"),
)


@pytest.mark.parametrize("name", FORMATS)
def test_whatever_is_written_nothing_raises_and_nothing_is_lost(name: str) -> None:
    rng = random.Random(name)
    for _ in range(600):
        pieces = [rng.choice(PIECES) for _ in range(rng.randint(1, 14))]
        turn = parse("".join(pieces), name)
        for call in turn.calls:
            assert call.ok or (call.error and isinstance(call.written, str))
            assert not call.ok or call.name in ("add", "now")
        kept = turn.reasoning + message_text(turn.message)
        assert "".join(pieces).count("ok") <= kept.count("ok")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.timeout(60)  # where the time grows with the square of the length, it takes hours
def test_megabytes_are_read_in_seconds(name: str) -> None:
    for text in ("<tool_call>" * 20_000, '[TOOL_CALLS]{"' * 4_000, '<tool_call>{"a": "' * 4_000, "{" * 200_000):
        parse(text, name)
    big = write(name, [("add", {"a": 1, "s": "x" * 2_000_000})])
    assert len(parse(big, name).calls[0].arguments["s"]) == 2_000_000


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([ADD, {"type": "function", "function": ADD}], "two tools are called 'add'"),
        ('[{"name": "add"', "tools are not valid JSON"),
        ([{"description": "x"}], "a tool has no name"),
        (["add"], "a tool has no name"),
        ([{**ADD, "parameters": {"type": "object", "properties": {"a": {"type": "integr"}}}}], "not a JSON schema"),
        ([{**ADD, "parameters": {"type": "array"}}], "not a JSON schema of an object"),
    ],
)
def test_bad_tools_are_refused_with_their_row(tools: Any, message: str) -> None:
    with pytest.raises(DatasetError, match=message) as caught:
        read_tools(tools, "train.jsonl, line 3")
    assert "train.jsonl, line 3" in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_schema_fetches_nothing() -> None:
    tools = read_tools([{"name": "add", "parameters": {"$ref": "http://127.0.0.1:9/schema.json"}}], "test")
    turn = parse_turn(format_named("hermes"), write("hermes", [("add", {})]), tools)
    assert "cannot be checked against its schema" in turn.calls[0].error


def test_parameters_that_no_json_can_say_are_refused() -> None:
    inside_itself: dict[str, Any] = {"type": "object"}
    inside_itself["properties"] = inside_itself
    for parameters in (inside_itself, {("type",): "object"}):
        assert schema_error(parameters).startswith("it is not valid JSON"), parameters
    assert schema_error({"type": "object", "properties": {}}) == ""
