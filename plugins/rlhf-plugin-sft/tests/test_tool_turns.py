"""Conversations with tools: every turn of the assistant is learned, calls included; results are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.cli import context_of, open_registry
from rlhf_core.data import DatasetError, Datasets, DatasetSettings
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


def turns(*weights: int | None) -> list[dict[str, Any]]:
    """A question and an answer for each weight, as OpenAI's rows have them."""
    pairs = [
        [{"role": "user", "content": f"{n} + 1?"}, {"role": "assistant", "content": f"{n + 1}.", "weight": weight}]
        for n, weight in enumerate(weights)
    ]
    return [turn for pair in pairs for turn in pair]


def learned_texts(formatter: Formatter, rows: list[dict[str, Any]], tmp_path: Path) -> list[str]:
    """What is learned of each conversation with ``learn: all``."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    settings = DatasetSettings(sources=[{"name": "jsonl", "path": str(file)}], heldout_fraction=0)
    read = Datasets(settings, context_of(open_registry())).demonstrations("train")
    parts = [all_answers(formatter, row.prompt, row.completion, row.turn, row.tools) for row in read]
    return [formatter.tokenizer.decode([t for t, m in zip(p.completion, p.learned) if m]) for p in parts]


def test_turns_of_weight_0_are_read_and_not_learned(formatter: Formatter, tmp_path: Path) -> None:
    rows = [turns(1, 1), turns(0, 1), turns(None, 0), turns(1, 0, 1)]
    both, second, first, ends = learned_texts(formatter, rows, tmp_path)
    assert ("1." in both, "2." in both) == (True, True)
    assert ("1." in second, "2." in second) == (False, True)
    assert ("1." in first, "2." in first) == (True, False)
    assert ("1." in ends, "2." in ends, "3." in ends) == (True, False, True)


@pytest.mark.parametrize(("row", "says"), [(turns(0, 0), "weight 0"), (turns(0.5, 1), "neither 0 nor 1")])
def test_conversations_without_a_weight_to_learn(formatter: Formatter, row: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError) as caught:
        learned_texts(formatter, [row], tmp_path)
    assert says in str(caught.value)
