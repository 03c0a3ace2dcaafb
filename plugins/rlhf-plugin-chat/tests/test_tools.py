"""`rlhf chat --tools`: the model's calls are made and shown, within limits."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_core.models import ModelConfig, load_tokenizer
from rlhf_core.rollouts import FinishReason, Rollout
from rlhf_plugin_chat.conversation import Conversation
from rlhf_plugin_chat.screen import Screen
from rlhf_plugin_chat.talker import ChatModel, Settings
from rlhf_plugin_chat.toolbox import Toolbox

TOOLS = '''
import time

def temperature(city: str, unit: str = "C") -> dict:
    """The temperature of a city."""
    return {"city": city, "value": len(city), "unit": unit}

def wait(seconds: int):
    """Waits."""
    time.sleep(seconds)

def _hidden(): ...
'''
FORMAT = """
from rlhf_plugin_episodes.tool_formats import ParsedToolCalls, RawToolCall

class Always:
    def take(self, text): return ParsedToolCalls("", [RawToolCall(text, "calculator", {"expression": "6 * 7"})])
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, room for several turns, and a template that knows tools."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    tokenizer = load_tokenizer(ModelConfig(path="pocket", chat_template="hermes"))
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=4096, **sizes)
    folder = tmp_path_factory.mktemp("chat") / "model"
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class Scripted:
    """Writes the turns that a test says."""

    def __init__(self, tokenizer: Any, turns: Sequence[str]) -> None:
        self.tokenizer, self.turns, self.context, self.read = tokenizer, list(turns), 4096, list[str]()

    def generate(self, requests: Any, sampling: Any, policy_version: int) -> list[Rollout]:
        (request,) = requests
        self.read.append(self.tokenizer.decode(request.prompt_ids))
        text = self.turns.pop(0)
        ids = (*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id)
        end = FinishReason.EOS
        logprobs = np.full(len(ids), -1, np.float32)
        return [Rollout("chat", 0, request.prompt_ids, ids, logprobs, 0, end, text, request.seed)]


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_calls_are_made_shown_and_remembered(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "my_tools.py"
    file.write_text(TOOLS)
    toolbox = Toolbox.chosen(["calculator", str(file)], 8, 0.5)
    assert [tool["function"]["name"] for tool in toolbox.tools] == ["calculator", "temperature", "wait"]
    schema = toolbox.tools[1]["function"]
    assert schema["description"] == "The temperature of a city."
    assert schema["parameters"]["properties"] == {"city": {"type": "string"}, "unit": {"type": "string"}}
    assert schema["parameters"]["required"] == ["city"]
    talker = ChatModel.load(str(model), None, None, lambda text: None, toolbox)
    turns = [
        f"I look. {call('temperature', city='Rome')}\n{call('calculator', expression='6 * 7')}",
        call("wait", seconds=60),
        call("fly"),
        "42 and 4.",
        "Bye.",
    ]
    engine = talker.engine = Scripted(talker.policy.tokenizer, turns)
    assert talker.tool_user is not None
    talker.tool_user = replace(talker.tool_user, sampler=talker.tool_user.sampler._replace(engine=engine))
    conversation = Conversation([talker], Settings(max_tokens=2000), Screen())
    capsys.readouterr()
    try:
        assert conversation.line("How warm is it?")
        shown = capsys.readouterr()
        assert shown.out.splitlines() == ["I look.", '{"name": "fly", "arguments": {}}', "42 and 4."]
        said = [line for line in shown.err.splitlines() if line]
        assert said[:2] == ['call temperature {"city": "Rome"}', 'call calculator {"expression": "6 * 7"}']
        assert said[2:4] == ['temperature: {"city": "Rome", "value": 4, "unit": "C"}', "calculator: 42"]
        assert "wait (timeout): Error: environment 'tools'" in said[5]
        assert "did not answer step in 0.5 s" in said[5]
        assert "there is no tool 'fly'" in said[6]
        assert conversation.line("Thanks.")
        assert '"value": 4' in engine.read[-1].replace("\\", "")  # what was read before is read again
        saved = tmp_path / "chat.jsonl"
        conversation.line(f"/save {saved}")
        row = json.loads(saved.read_text())
        roles = ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant", "tool", "assistant"]
        assert [m["role"] for m in row["messages"]] == [*roles, "user", "assistant"]
        assert len(row["tools"]) == 3
        engine.turns = ["Farewell."]
        conversation.line("/retry")
        assert [m["content"] for m in talker.turns[-2:]] == ["Thanks.", "Farewell."]
        assert len(talker.turns) == 11
    finally:
        talker.close()


def test_the_command_runs_tools_up_to_its_limit(
    model: Path, tmp_path: Path, rlhf: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sums_format.py").write_text(FORMAT)
    info = tmp_path / "sums-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sums\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rlhf.tool_format]\nsums = sums_format:Always\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Hello\n"), encoding="utf-8"))
    words = ("chat", model, "--tools", "calculator", "--tool-format", "sums", "--max-turns", 3, "--json")
    ran = rlhf(*words, "--max-tokens", 300)
    assert ran.code == 0, ran.err
    shown = json.loads(ran.out)["tools"]
    assert shown[:2] == ['call calculator {"expression": "6 * 7"}', "calculator: 42"]
    assert sum(line.startswith("call") for line in shown) <= 3


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        (["nothing"], "there is no tool, environment or file 'nothing'"),
        (["missing.py"], "a file of tools cannot be read"),
        (["calculator", "calculator"], "two tools called 'calculator'"),
        (["star.py"], "takes arguments without names"),
        (["empty.py"], "has no function"),
    ],
)
def test_tools_that_cannot_be_offered_are_refused(
    tools: list[str], says: str, tmp_path: Path, rlhf: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "star.py").write_text("def f(*rest): ...\n")
    (tmp_path / "empty.py").write_text("x = 1\n")
    ran = rlhf("chat", "pocket", *(word for tool in tools for word in ("--tools", tool)))
    assert ran.code == 2
    assert says in ran.err


def test_a_template_that_ignores_tools_is_refused(rlhf: Callable[..., Any]) -> None:
    ran = rlhf("chat", "pocket", "--tools", "calculator")
    assert ran.code == 2
    assert "the chat template ignores tools" in ran.err
