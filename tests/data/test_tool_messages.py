"""Turns with tool calls: their types, what reads them, and that nothing changes for rows without."""

from __future__ import annotations

import json

import pytest

from rlhf_core.data.held_out import content_key
from rlhf_core.data.mixture import fingerprint
from rlhf_core.delimiters import delimited
from rlhf_core.messages import Message, ToolCall, calls_of, message_text
from rlhf_core.types import Demonstration, PreferencePair, Prompt, Sample, UnpairedPreference
from rlhf_core.verifiers.codec import sample_from_json, sample_to_json

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
    assert '"name": "add"' in delimited(("response", "x"), conversation=[ASKED, CALLING, RESULT])
    asked = [content_key([ASKED, {**CALLING, "tool_calls": calls}]) for calls in ([], [CALL.as_json()])]
    assert asked[0] != asked[1]


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
    assert "tools" not in sample_to_json(Sample(Prompt("a", (ASKED,)), "4"))


def test_rows_without_tools_keep_the_hash_of_earlier_versions() -> None:
    rows = [
        Prompt("a", (ASKED,), "4"),
        PreferencePair("p", (ASKED,), "4", "5"),
        Demonstration("d", (ASKED,), "4"),
        UnpairedPreference("u", (ASKED,), "4", True),
    ]
    assert fingerprint(rows) == "19c0b57fbb766480"
    with_tools = Demonstration("d", (ASKED,), "4", tools=(ADD,))
    assert fingerprint([with_tools]) != fingerprint([rows[2]])
    assert fingerprint([Demonstration("d", (ASKED,), "4", turn=CALLING)]) != fingerprint([rows[2]])
