"""Conversations with tools: every turn of the assistant is learned, calls included; results are not."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_core.models import Formatter, ModelConfig, load_tokenizer
from rlhf_plugin_sft.task import all_answers, last_answer

TOOLS = ({"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}},)
CALL = {"id": "call00000", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
ASKED = {"role": "user", "content": "2 + 2?"}
RESULT = {"role": "tool", "content": "four it is", "tool_call_id": "call00000", "name": "add"}


@pytest.fixture(scope="module")
def formatter() -> Formatter:
    return Formatter(load_tokenizer(ModelConfig(path="pocket", chat_template="hermes")), "auto")


def test_calls_are_learned_and_results_are_masked(formatter: Formatter) -> None:
    def decoded(turns: Any, learned: bool) -> str:
        ids = [token for token, mine in zip(turns.completion, turns.learned) if mine is learned]
        return str(formatter.tokenizer.decode(ids))

    turns = all_answers(formatter, [ASKED, CALLING, RESULT], "It is 4.", None, TOOLS)
    assert '"arguments": {"a": 2}' in decoded(turns, True)
    assert "It is 4." in decoded(turns, True)
    assert "four it is" in decoded(turns, False)
    assert "four it is" not in decoded(turns, True)
    assert turns.prompt == formatter.encode([ASKED], TOOLS)
    last = last_answer(formatter, [ASKED], "", CALLING, TOOLS)
    assert all(last.learned)
    assert turns.completion[: len(last.completion)] == last.completion
