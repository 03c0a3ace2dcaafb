"""Whatever a schema says of an argument, and whatever order the keys of a call have: parse(write(call)) == call."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.data.tools import read_tools
from rlhf_core.types.messages import AssistantTurn, ToolCall
from rlhf_plugin_episodes.tool_calls import format_named, parse_turn

FORMATS = ("mistral", "qwen_xml", "hermes", "llama3", "plain")
TEXT, INTEGER, NULL = {"type": "string"}, {"type": "integer"}, {"type": "null"}
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20) | st.sampled_from(
    ["", "5", "True", "null", '"5"', "[1]", "\n", " a\n", "1e5", "a </parameter> b", "a </function> b", "</tool_call>"]
)
numbers = st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
words = st.text("abcxyz ä-", min_size=1, max_size=12).filter(lambda text: text == text.strip())
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
person = st.fixed_dictionaries({"name": texts}, optional={"age": st.none() | st.integers(0, 99)})
FORMS: dict[str, tuple[dict[str, Any], st.SearchStrategy[Any]]] = {
    "string": (TEXT, texts),
    "pattern alone": ({"type": "string", "pattern": "^[0-9]+$"}, st.from_regex("[0-9]{1,9}", fullmatch=True)),
    "integer": (INTEGER, st.integers(-(10**20), 10**20)),
    "number": ({"type": "number"}, numbers),
    "boolean": ({"type": "boolean"}, st.booleans()),
    "null": (NULL, st.none()),
    "array": ({"type": "array", "items": TEXT}, st.lists(texts, max_size=3)),
    "object": ({"type": "object"}, st.dictionaries(texts, values, max_size=3)),
    "list of types": ({"type": ["integer", "null"]}, st.none() | st.integers()),
    "list of types with string": ({"type": ["string", "boolean"]}, st.booleans() | words),
    "anyOf": ({"anyOf": [INTEGER, NULL]}, st.none() | st.integers()),
    "anyOf without numbers": ({"anyOf": [TEXT, NULL]}, st.none() | words | st.sampled_from(["5", "[1]", "true"])),
    "anyOf of all": (
        {"anyOf": [TEXT, {"type": "array"}, {"type": "boolean"}]},
        st.booleans() | st.lists(values) | words,
    ),
    "oneOf": ({"oneOf": [INTEGER, {"type": "boolean"}, NULL]}, st.none() | st.booleans() | st.integers()),
    "allOf": ({"allOf": [INTEGER, {"minimum": 0}]}, st.integers(0, 99)),
    "$ref": ({"$ref": "#/$defs/Person"}, person),
    "$ref to a choice": ({"$ref": "#/$defs/Choice"}, st.sampled_from([1, 2.5, True, None, "one"])),
    "optional $ref": ({"anyOf": [{"$ref": "#/$defs/Person"}, NULL], "default": None}, st.none() | person),
    "enum of texts": ({"enum": ["1", "true", "one"]}, st.sampled_from(["1", "true", "one"])),
    "enum of values": ({"enum": [1, False, None, "one"]}, st.sampled_from([1, False, None, "one"])),
    "const": ({"const": 5}, st.just(5)),
    "const text": ({"const": "5"}, st.just("5")),
    "nested": (
        {"type": "object", "properties": {"who": {"$ref": "#/$defs/Person"}, "n": {"anyOf": [INTEGER, NULL]}}},
        st.fixed_dictionaries({"who": person, "n": st.none() | st.integers()}),
    ),
    "anything": ({}, st.none() | st.booleans() | numbers | st.lists(values) | words),
}
DEFS = {
    "Person": {
        "type": "object",
        "properties": {"name": TEXT, "age": {"anyOf": [INTEGER, NULL]}},
        "required": ["name"],
        "additionalProperties": False,
    },
    "Choice": {"enum": [1, 2.5, True, None, "one"]},
}
PROPERTIES = {name: form for name, (form, _) in FORMS.items()}
STRICT = {"type": "object", "properties": PROPERTIES, "$defs": DEFS, "additionalProperties": False}
SCHEMAS = {
    "properties": STRICT,
    "a $ref at the top": {"$ref": "#/$defs/All", "$defs": {**DEFS, "All": STRICT}},
    "allOf at the top": {"allOf": [{"properties": PROPERTIES}, {"type": "object"}], "$defs": DEFS},
    "anyOf at the top": {"anyOf": [{"required": ["no such"]}, STRICT], "$defs": DEFS},
    "a pattern": {"patternProperties": {f"^{k.replace('$', '.')}$": v for k, v in PROPERTIES.items()}, "$defs": DEFS},
}


def write(name: str, tool: str, arguments: dict[str, Any], *, as_json: bool = True) -> str:
    """A call as the chat templates of a family write it; ``as_json`` False: scalars as Qwen's Jinja has them."""
    call = json.dumps({"name": tool, "arguments": arguments}, ensure_ascii=False)
    if name == "mistral":
        return f"[TOOL_CALLS][{call}]"
    if name == "llama3":
        return json.dumps({"name": tool, "parameters": arguments}, ensure_ascii=False)
    if name == "plain":
        return f"```json\n{call}\n```"
    if name == "hermes":
        return f"<tool_call>\n{call}\n</tool_call>"
    rows = ""
    for key, value in arguments.items():
        python = not as_json and not isinstance(value, (list, dict))
        text = value if isinstance(value, str) else str(value) if python else json.dumps(value, ensure_ascii=False)
        rows += f"<parameter={key}>\n{text}\n</parameter>\n"
    return f"<tool_call>\n<function={tool}>\n{rows}</function>\n</tool_call>"


def same(a: Any, b: Any) -> bool:
    """Equal, and of equal types: Python takes True for 1."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


@pytest.mark.parametrize("top", SCHEMAS)
@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data())
def test_a_call_is_read_as_it_was_written(name: str, top: str, data: st.DataObject) -> None:
    tools = read_tools([{"name": "act", "parameters": SCHEMAS[top]}], "test")
    chosen = data.draw(st.lists(st.sampled_from(list(FORMS)), min_size=1, max_size=3, unique=True))
    arguments = {form: data.draw(FORMS[form][1], form) for form in chosen}
    text = write(name, "act", arguments, as_json=data.draw(st.booleans()))
    (call,) = parse_turn(format_named(name), text, tools).calls
    assert call.error == ""
    assert same({**call.arguments}, arguments)


def test_every_form_is_read_from_xml_for_each_of_its_values() -> None:
    """What a table shows: the schema, the text between the tags, and the value."""
    for form, text, value in (
        ({"anyOf": [INTEGER, NULL]}, "5", 5),
        ({"anyOf": [INTEGER, NULL]}, "null", None),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "false", False),
        ({"oneOf": [{"type": "boolean"}, TEXT]}, "False", False),
        (TEXT, "True", "True"),
        ({"type": ["string", "null"]}, "5", "5"),
        ({"type": ["string", "null"]}, "None", None),
        ({"type": "array"}, '["True", true]', ["True", True]),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"type": "array"}, "[True, None, 'a']", [True, None, "a"]),
        ({"type": "object"}, "{'a': {'b': False}}", {"a": {"b": False}}),
        (TEXT, "['a']", "['a']"),
        ({"type": "integer", "nullable": True}, "null", None),
        ({"type": "array", "items": {"enum": ["a"], "nullable": True}}, '["a", null]', ["a", None]),
    ):
        tools = read_tools([{"name": "f", "parameters": {"type": "object", "properties": {"x": form}}}], "test")
        text = f"<tool_call><function=f><parameter=x>{text}</parameter></function></tool_call>"
        (call,) = parse_turn(format_named("qwen_xml"), text, tools).calls
        assert same([call.error, {**call.arguments}], ["", {"x": value}]), form


def test_what_no_reading_fits_is_shown_as_the_nearest_one() -> None:
    form = {"a": INTEGER, "s": {"type": "string", "enum": ["one"]}, "o": {"$ref": "#/nowhere"}}
    tools = read_tools([{"name": "f", "parameters": {"type": "object", "properties": form}}], "test")
    for key, text, error in (
        ("a", "1.5", "$.a: 1.5 is not of type 'integer'"),
        ("a", "five", "$.a: 'five' is not of type 'integer'"),
        ("s", "1", "$.s: '1' is not one of ['one']"),
        ("o", "1", "cannot be checked against its schema"),
        ("a", "[" * 100_000, "nested too deeply"),
    ):
        text = f"<tool_call><function=f><parameter={key}>{text}</parameter></function></tool_call>"
        (call,) = parse_turn(format_named("qwen_xml"), text, tools).calls
        assert error in call.error or (len(text) > 1000 and not call.ok)


TOOLS = read_tools(
    [{"name": "f", "parameters": {"type": "object", "properties": {"d": TEXT}}}, {"name": "now"}], "test"
)
CALL = {"type": "function", "name": "f", "parameters": {"d": "a"}, "id": "x"}
OPENAI = {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"d": "a"}'}}


def around(name: str, text: str) -> str:
    return {"hermes": f"<tool_call>{text}</tool_call>", "mistral": f"[TOOL_CALLS]{text}"}.get(name, text)


@pytest.mark.parametrize("name", [f for f in FORMATS if f != "qwen_xml"])
@pytest.mark.parametrize("call", [CALL, OPENAI], ids=["flat", "OpenAI's"])
def test_the_order_of_keys_never_matters(name: str, call: dict[str, Any]) -> None:
    for keys in itertools.permutations(call):
        text = json.dumps({key: call[key] for key in keys})
        (read,) = parse_turn(format_named(name), around(name, text), TOOLS).calls
        assert (read.name, dict(read.arguments), read.error) == ("f", {"d": "a"}, "")


@pytest.mark.parametrize("name", [f for f in FORMATS if f != "qwen_xml"])
@pytest.mark.parametrize("key", ["input", "args", "d"])
def test_a_call_whose_arguments_stand_elsewhere_does_not_run_without_them(name: str, key: str) -> None:
    text = json.dumps({"name": "f", key: {"d": "a"}})
    (read,) = parse_turn(format_named(name), around(name, text), TOOLS).calls
    assert read.error == f"the call has no \"arguments\", but '{key}'"


@pytest.mark.parametrize("text", ["{0}", "[{0}]", "```json\n{0}\n```", "```\n[{0}, {0}]\n```", "{0}; {0}", "{0}\n{0}"])
def test_objects_in_a_row_are_calls_in_any_order_of_keys(text: str) -> None:
    whole = text.format(json.dumps(CALL))
    calls = parse_turn(format_named("plain"), whole, TOOLS).calls
    assert [dict(c.arguments) for c in calls] == [{"d": "a"}] * text.count("{0}")
    if text.startswith("{"):
        assert len(parse_turn(format_named("llama3"), whole, TOOLS).calls) == text.count("{0}")


ANSWERS = (
    '{"name": "Ada", "age": 36}',
    '{"age": 36, "name": "Ada"}',
    '[{"name": "Ada"}, {"name": "Bob"}]',
    '{"type": "object", "value": {"name": "f"}}',
    "[]",
    "[1, 2]",
    '{"answer": 4',
    '```json\n{"function": "x -> x"}\n```',
)


@pytest.mark.parametrize("text", ANSWERS)
@pytest.mark.parametrize("name", ["llama3", "plain"])
def test_an_answer_in_json_that_names_no_tool_is_text(name: str, text: str) -> None:
    assert parse_turn(format_named(name), text, TOOLS) == AssistantTurn(text)


@pytest.mark.parametrize("name", ["llama3", "plain"])
def test_an_object_alone_that_is_a_call_to_its_form_or_its_name_is_one(name: str) -> None:
    (unknown,) = parse_turn(format_named(name), '{"parameters": {}, "name": "g"}', TOOLS).calls
    assert "there is no tool 'g'; the tools are: f, now" in unknown.error
    assert parse_turn(format_named(name), '{"id": 1, "name": "now"}', TOOLS).calls == (
        ToolCall("now", {}, "call00000"),
    )
    for cut in ('{"type": "function", "name": "f", "para', '{"id": "x", "name": "f", "parameters": {"name": "Ada"'):
        (call,) = parse_turn(format_named(name), cut, TOOLS, cut=True).calls
        assert (call.name, "the turn was cut" in call.error) == ("f", True)
    turn = parse_turn(format_named(name), '{"total": 2} {"name": "now"}', TOOLS)
    assert ([c.name for c in turn.calls], turn.content) == (["now"], '{"total": 2}')
    (nested,) = parse_turn(format_named(name), '{"name": "f", "arguments": {"name": 5}, "x": }', TOOLS).calls
    assert (nested.name, nested.ok) == ("f", False)
    (behind,) = parse_turn(format_named(name), '{"arguments": {"name": "Ada"}, "name": "f"', TOOLS).calls
    assert (behind.name, behind.ok) == ("f", False)


MESSAGES = (
    {"tool_calls": [CALL]},
    {"tool_calls": [OPENAI, OPENAI]},
    {"role": "assistant", "content": None, "tool_calls": [OPENAI]},
    {"tool_call": CALL},
    {"function_call": {"name": "f", "arguments": '{"d": "a"}'}},
    [{"tool_calls": [OPENAI]}, CALL],
)


@pytest.mark.parametrize("name", [f for f in FORMATS if f not in ("qwen_xml", "llama3")])
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: json.dumps(message)[:40])
def test_the_calls_of_a_message_are_calls(name: str, message: Any) -> None:
    turn = parse_turn(format_named(name), around(name, json.dumps(message)), TOOLS)
    if name == "hermes" and isinstance(message, list):
        assert [call.error for call in turn.calls] == ["a call is an object with name and arguments, not list"]
        return
    assert [(c.name, dict(c.arguments), c.error) for c in turn.calls] == [("f", {"d": "a"}, "")] * len(turn.calls)
    assert (len(turn.calls), turn.content) == (json.dumps(message).count('"f"'), "")
    if isinstance(message, dict):
        llama = parse_turn(format_named("llama3"), json.dumps(message), TOOLS)
        assert [c.name for c in llama.calls] == ["f"] * len(turn.calls)


@pytest.mark.parametrize("name", ["llama3", "plain"])
@pytest.mark.parametrize(
    "message",
    [
        {"tool_calls": []},
        {"tool_calls": 3},
        {"tool_calls": [{"name": "Ada"}]},
        {"content": "Let me look.", "tool_calls": [CALL]},
        {"answer": 4, "tool_calls": [CALL]},
    ],
    ids=lambda message: json.dumps(message)[:40],
)
def test_a_message_with_more_than_calls_of_the_prompts_tools_is_text(name: str, message: dict[str, Any]) -> None:
    text = json.dumps(message)
    assert parse_turn(format_named(name), text, TOOLS) == AssistantTurn(text)
