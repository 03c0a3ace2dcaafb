"""`rlhf generate` shows a call as a call, and what is wrong with one that cannot run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlhf_core.data.tools import read_tools
from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_tokenizer
from rlhf_core.models.prompt_format import Formatter
from rlhf_core.types.messages import ToolCall
from rlhf_core.types.rollouts import FinishReason, Prompt, Rollout
from rlhf_plugin_native import generate


def test_a_call_is_shown_as_a_call(capsys: pytest.CaptureFixture[str]) -> None:
    tools = read_tools([{"name": "add", "parameters": {"type": "object", "required": ["a"]}}], "test")
    prompt = Prompt("p", ({"role": "user", "content": "2 + 2?"},), tools=tools)
    formatter = Formatter(load_tokenizer(ModelConfig(path="pocket", chat_template="hermes")), "auto")
    calls = [ToolCall("add", {"a": 2}).as_json(), ToolCall("add", {}).as_json()]
    turn: dict[str, Any] = {"role": "assistant", "content": "I add.", "tool_calls": calls}
    ids = formatter.encode_reply(prompt.messages, "", turn, tools)
    text = formatter.tokenizer.decode(ids, skip_special_tokens=True)
    rollout = Rollout("p", 0, (1,), ids, np.zeros(len(ids), np.float32), 0, FinishReason.EOS, text, 0)
    row = generate._row(prompt, [rollout], formatter)
    assert [call["name"] for call in row["completions"][0]["calls"]] == ["add", "add"]
    assert row["tools"] == [dict(tool) for tool in tools]
    generate._print(row)
    shown = capsys.readouterr().out.splitlines()
    assert shown[:3] == ["2 + 2?", "  I add.", '  call add {"a": 2}']
    assert "cannot run: the arguments of 'add' break its schema at $: 'a' is a required property" in shown[3]
