"""Turns with tool calls: their types, what reads them, and that nothing changes for rows without."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from rlhf_core.data.datasets import Datasets
from rlhf_core.data.held_out import content_key
from rlhf_core.data.order import fingerprint
from rlhf_core.data.turns import read_turns
from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_tokenizer
from rlhf_core.models.prompt_format import Formatter
from rlhf_core.types.errors import DatasetError
from rlhf_core.types.messages import Demonstration, Message, ToolCall, calls_of, message_text, tool_name
from rlhf_core.types.rollouts import Prompt, Sample
from rlhf_plugin_episodes.cli import to_row
from rlhf_plugin_judge.delimiters import fence_untrusted
from rlhf_plugin_verifiers.workers import sample_from_json, sample_to_json

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALL = ToolCall("add", {"a": [2, {"b": "ä"}]}, id="call00000")
CALLING: Message = {"role": "assistant", "content": None, "tool_calls": [CALL.as_json()]}
ASKED: Message = {"role": "user", "content": "2 + 2?"}
RESULT: Message = {"role": "tool", "content": "4", "tool_call_id": "call00000"}


def test_a_turn_of_calls_alone_is_read_as_text_by_everything_that_reads_content() -> None:
    assert calls_of(CALLING) == (CALL,)
    assert message_text(CALLING) == '<tool_call>{"name": "add", "arguments": {"a": [2, {"b": "ä"}]}}</tool_call>'
    assert message_text({**CALLING, "content": "I add."}).startswith("I add.\n<tool_call>")
    assert message_text({"role": "assistant", "content": None}) == ""
    assert Prompt("a", (ASKED, CALLING)).text == message_text(CALLING)
    assert '"name": "add"' in fence_untrusted(("response", "x"), conversation=[ASKED, CALLING, RESULT])
    asked = [content_key([ASKED, {**CALLING, "tool_calls": calls}]) for calls in ([], [CALL.as_json()])]
    assert asked[0] != asked[1]


def test_nulls_that_a_table_fills_in_hide_nothing() -> None:
    call = {"name": "f", "arguments": None, "parameters": {"a": 1}}
    thought = {"type": "reasoning", "thinking": None, "text": "I add."}
    used = {"type": "tool_use", "name": "f", "input": None, "args": {"a": 1}}
    turns = [
        {"role": None, "from": "human", "content": None, "value": "x"},
        {"role": "assistant", "content": None, "value": "so", "tool_calls": [{"function": call}]},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "4"}, used]},
    ]
    asked, calling, answer = read_turns(turns, "d.jsonl:1", tools=False)
    assert (asked["role"], asked["content"], calling["content"]) == ("user", "x", "so")
    assert [c.arguments for m in (calling, answer) for c in calls_of(m)] == [{"a": 1}, {"a": 1}]
    assert (answer.get("reasoning"), answer["content"]) == ("I add.", "4")


@pytest.mark.parametrize(
    "turn",
    [
        {"content": [{"type": "text", "text": None}]},
        {"content": [{"type": "thinking", "thinking": {"a": 1}}]},
        {"content": "4", "reasoning": ["a", "b"]},
    ],
)
def test_what_is_not_text_is_never_printed_as_one(turn: dict[str, Any]) -> None:
    with pytest.raises(DatasetError, match=r"d\.jsonl:1"):
        read_turns([{"role": "assistant", **turn}], "d.jsonl:1", tools=False)


def test_calls_and_tools_cannot_be_changed() -> None:
    prompt = Prompt("a", (ASKED, CALLING), tools=(ADD,))
    with pytest.raises(TypeError, match="read-only"):
        prompt.tools[0]["function"]["name"] = "mine"  # pyright: ignore[reportIndexIssue]
    with pytest.raises(TypeError, match="read-only"):
        prompt.messages[1]["tool_calls"].append({})
    with pytest.raises(TypeError, match="read-only"):
        CALL.arguments["a"].append(3)


def test_a_verifiers_worker_sees_calls_and_tools() -> None:
    sample = Sample(Prompt("a", (ASKED, CALLING, RESULT), tools=(ADD,)), "4")
    assert sample_from_json(json.loads(json.dumps(sample_to_json(sample)))) == sample


def test_a_fingerprint_sees_tools_and_calls() -> None:
    plain = Demonstration("d", (ASKED,), "4")
    others = [Demonstration("d", (ASKED,), "4", tools=(ADD,)), Demonstration("d", (ASKED,), "4", turn=CALLING)]
    assert len({fingerprint([row]) for row in (plain, *others)}) == 3


Read = Callable[..., list[Any]]


@pytest.fixture
def read(datasets: Callable[..., Datasets], write: Callable[..., str]) -> Read:
    """``read(row, kind)`` -> what the reader makes of a row."""

    def make(row: dict[str, Any], kind: str = "demonstrations") -> list[Any]:
        path = write("a.jsonl", [row])
        return getattr(datasets(name="jsonl", path=path, heldout_fraction=0), kind)("train")

    return make


SECOND = ToolCall("add", {"a": [3]}, id="call00001")
TALK: list[Message] = [
    {"role": "system", "content": "Be brief."},
    ASKED,
    {"role": "assistant", "content": "", "tool_calls": [CALL.as_json(), SECOND.as_json()]},
    {"role": "tool", "content": "4", "tool_call_id": "call00000", "name": "add"},
    {"role": "tool", "content": "{3}", "tool_call_id": "call00001", "name": "add"},
    {"role": "assistant", "content": "It is 4."},
]


@pytest.mark.parametrize("form", ["openai", "sharegpt", "hermes"])
def test_rows_of_every_form_round_trip(read: Read, form: Any) -> None:
    row = to_row(TALK, (ADD,), form)
    (demonstration,) = read(json.loads(json.dumps(row)))
    assert list(demonstration.prompt) == TALK[:-1]
    assert (demonstration.completion, demonstration.turn, demonstration.tools) == ("It is 4.", None, (ADD,))
    assert to_row([*demonstration.prompt, TALK[-1]], demonstration.tools, form) == row
    (calling,) = read(to_row(TALK[:3], (ADD,), form))
    assert calling.turn == TALK[2]
    assert calling.completion == message_text(TALK[2])
    (prompt,) = read(to_row(TALK[:5], (ADD,), form), "prompts")
    assert (list(prompt.messages), prompt.tools) == (TALK[:5], (ADD,))
    assert "tools" not in prompt.meta


def test_openai_writes_null_and_arguments_as_text() -> None:
    written = to_row(TALK, (ADD,))["messages"][2]
    assert written["content"] is None
    assert json.loads(written["tool_calls"][0]["function"]["arguments"]) == CALL.arguments


def test_anthropics_blocks_and_the_legacy_function_call_are_read(read: Read) -> None:
    blocks = [
        {"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I add."},
                {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 2}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "4"}]},
        {"role": "assistant", "content": "4"},
    ]
    (row,) = read({"messages": blocks, "tools": [{"name": "add", "input_schema": {"type": "object"}}]})
    assert row.prompt[1]["reasoning"] == "I add."
    assert row.prompt[2] == {"role": "tool", "content": "4", "tool_call_id": "toolu_1", "name": "add"}
    legacy = [
        ASKED,
        {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": '{"a": 2}'}},
        {"role": "function", "name": "add", "content": "4"},
        {"role": "assistant", "content": "4"},
    ]
    (old,) = read({"messages": legacy, "functions": [{"name": "add"}]})
    assert calls_of(old.prompt[1])[0].arguments == {"a": 2}
    assert old.prompt[2]["tool_call_id"] == old.prompt[1]["tool_calls"][0]["id"]


def test_pairs_and_single_verdicts_hold_calls(read: Read) -> None:
    wrong = {**CALLING, "content": "", "tool_calls": [ToolCall("add", {"a": []}).as_json()]}
    (pair,) = read({"prompt": [ASKED], "chosen": [CALLING], "rejected": [wrong], "tools": [ADD]}, "pairs")
    assert calls_of(pair.chosen_turn)[0].arguments != calls_of(pair.rejected_turn)[0].arguments
    assert pair.tools == (ADD,)
    assert '"name": "add"' in pair.chosen
    sides = read({"prompt": [ASKED], "chosen": [CALLING], "rejected": "no", "tools": [ADD]}, "unpaired")
    assert [(s.desirable, s.turn is None) for s in sides] == [(True, False), (False, True)]


def calling(call: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [ASKED, {**CALLING, "tool_calls": [call]}]}


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (
            {"messages": [ASKED, {**CALLING, "tool_calls": [{"function": {"name": "add", "arguments": "{a: 1"}}]}]},
            "JSON",
        ),
        (
            {"messages": [ASKED, {**CALLING, "tool_calls": [{"function": {"arguments": "{}"}}]}]},
            "a tool call has no name",
        ),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": "add(1)"}]}, "JSON"),
        ({"messages": [ASKED, {"role": "assistant", "content": "<tool_call>{</tool_call>"}], "tools": [ADD]}, "JSON"),
        ({"messages": [ASKED, TALK[-1]], "tools": [ADD, ADD]}, "two tools are called 'add'"),
        ({"messages": [ASKED, TALK[-1]], "tools": '[{"name": "add"'}, "tools are not valid JSON"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}, TALK[-1]]}, "a block of type 'image_url'"),
        ({"messages": [ASKED, {"role": "assistant", "content": None}]}, "a turn is not"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(read: Read, row: dict[str, Any], what: str) -> None:
    with pytest.raises(DatasetError, match=what) as caught:
        read(row)
    assert "line 1" in str(caught.value)


def test_a_column_called_tools_that_holds_none_is_a_column_like_others(read: Read) -> None:
    for value in ([], "hammer and nails", ["hammer"]):
        (prompt,) = read({"prompt": "Hi", "tools": value}, "prompts")
        assert (prompt.tools, prompt.meta["tools"]) == ((), value)


def test_calls_as_text_stay_text_without_tools(read: Read) -> None:
    said = '<tool_call>{"name": "add"}</tool_call>'
    (row,) = read({"messages": [ASKED, {"role": "assistant", "content": said}]})
    assert (row.completion, row.turn) == (said, None)


@pytest.mark.parametrize(("name", "rows"), [("simple_python", 400), ("parallel", 200), ("irrelevance", 240)])
def test_bfcl_rows_are_prompts_with_tools(datasets: Callable[..., Datasets], name: str, rows: int) -> None:
    folder = os.environ.get("RLHF_TEST_DATA")
    if not folder:
        pytest.skip("RLHF_TEST_DATA is not set")
    path = f"{folder}/bfcl/BFCL_v4_{name}.json.gz"
    prompts = datasets(name="jsonl", path=path, heldout_fraction=0, columns={"tools": "function"}).prompts("train")
    assert len(prompts) == rows
    formatter = Formatter(load_tokenizer(ModelConfig(path="pocket", chat_template="hermes")), "auto")
    for prompt in prompts[::40]:
        text = formatter.text.restore(formatter.render(prompt.messages, prompt.tools, add_generation_prompt=True))
        assert all(f'"name": "{tool_name(tool)}"' in text for tool in prompt.tools)
        assert '"type": "dict"' not in text
        assert prompt.text in text
