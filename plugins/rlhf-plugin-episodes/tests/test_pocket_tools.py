"""The shipped tool-user: what it reads and writes, and how well it plays."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_tokenizer
from rlhf_core.models.prompt_format import Formatter
from rlhf_core.models.sources import resolve_model
from rlhf_plugin_episodes.lookup import weights_path
from rlhf_plugin_episodes.lookup.config import LookupDataConfig
from rlhf_plugin_episodes.lookup.questions import TOOLS
from rlhf_plugin_episodes.lookup.source import LookupSource
from rlhf_plugin_episodes.tool_calls import choose_format
from rlhf_plugin_episodes.tool_formats import Hermes
from rlhf_plugin_sft.task import all_answers


@pytest.fixture(scope="module")
def formatter() -> Any:
    return Formatter(load_tokenizer(ModelConfig(path="pocket-tools")), "auto")


def test_it_is_a_small_whole_model_that_has_room_for_several_turns() -> None:
    assert resolve_model("pocket-tools").path == str(weights_path())
    assert sum(file.stat().st_size for file in weights_path().iterdir()) < 4_000_000
    assert json.loads((weights_path() / "config.json").read_text())["max_position_embeddings"] >= 1024


def test_its_template_writes_tools_calls_and_results_in_hermes_form(formatter: Formatter) -> None:
    turns = LookupSource(LookupDataConfig()).demonstrations("train")[3]["messages"]
    text = formatter.render(turns[:3], TOOLS, add_generation_prompt=True)
    for part in (
        "search(query: string)",
        "Evaluates an expression.",
        '<tool_call>\n{"name": "search"',
        "<tool_response>",
    ):
        assert part in text
    assert isinstance(choose_format(formatter.tokenizer), Hermes)
    opening, whole = (formatter.encode(turns[:n], TOOLS) for n in (1, 3))
    assert whole[: len(opening)] == opening
    calls = formatter.parse(whole[len(opening) :], TOOLS).calls
    assert [(c.name, dict(c.arguments), c.error) for c in calls] == [
        ("search", turns[1]["tool_calls"][0]["function"]["arguments"], "")
    ]
    assert len(whole) - len(opening) < 40, "a call and its result are short"


def test_every_turn_of_a_demonstration_is_learned_and_no_result(formatter: Formatter) -> None:
    row = LookupSource(LookupDataConfig()).demonstrations("train")[4]
    turns = row["messages"]
    _, completion, learned = all_answers(formatter, turns[:-1], turns[-1]["content"], None, TOOLS)
    written = formatter.tokenizer.decode([t for t, mark in zip(completion, learned) if mark])
    read = formatter.tokenizer.decode([t for t, mark in zip(completion, learned) if not mark])
    assert written.count("<tool_call>") == sum(1 for turn in turns if turn.get("tool_calls")) == 6
    assert "<tool_response>" not in written
    assert "<tool_call>" not in read
    assert all(turn["content"] in read for turn in turns if turn["role"] == "tool")
