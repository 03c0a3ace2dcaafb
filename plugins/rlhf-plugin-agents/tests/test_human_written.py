"""Plays that a person wrote, right and wrong ones, through the real tools: what each is worth is known beforehand."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_plugin_agents.agents.config import ReactConfig
from rlhf_plugin_agents.backends.scripted import ScriptedBackend
from rlhf_plugin_agents.harness import play_one
from rlhf_plugin_agents.suites.config import AgentBenchMini

PLAYS: dict[str, tuple[str, list[str], bool, float]] = {
    "a fact, found": (
        "tool_use/3",
        [
            'I look it up.\nAction: {"name": "search", "arguments": {"query": "who founded Kestrel Works"}}',
            "Final answer: Signe Marrow.",
        ],
        True,
        1.0,
    ),
    "the wrong person of the right document": (
        "tool_use/3",
        ['Action: {"name": "search", "arguments": {"query": "Kestrel Works"}}', "Final answer: Ada Lindqvist"],
        False,
        1.0,
    ),
    "two hops with a detour": (
        "multi_step/1",
        [
            'Action: {"name": "search", "arguments": {"query": "Kestrel Works"}}',
            'Action: {"name": "documents", "arguments": {"title": "Kestrel Works town"}}',
            'Action: {"name": "search", "arguments": {"query": "Orlinghaven"}}',
            "The document says 48200.\nFinal answer: 48,200 inhabitants",
        ],
        True,
        2 / 3,
    ),
    "arithmetic in the head, a slip in it": (
        "multi_step/10",
        [
            'Action: {"name": "search", "arguments": {"query": "Garn Express"}}',
            "156 by 2 is 76.\nFinal answer: 76 km/h",
        ],
        False,
        0.5,
    ),
    "nothing found, and said so": (
        "failure_recovery/4",
        [
            'Action: {"name": "search", "arguments": {"query": "Velsund"}}',
            "Final answer: I could not find any information about an island called Velsund.",
        ],
        True,
        1.0,
    ),
    "another island's figure": (
        "failure_recovery/4",
        [
            'Action: {"name": "search", "arguments": {"query": "island inhabitants"}}',
            "Isle Morra must be meant.\nFinal answer: 2150",
        ],
        False,
        1.0,
    ),
    "a broken call, put right": (
        "tool_use/9",
        [
            'Action: {"name": "calculator", "arguments": "84 / 37.5"}',
            'Action: {"name": "calculator", "arguments": {"expression": "84 / 37.5"}}',
            "Final answer: 2.24",
        ],
        True,
        0.5,
    ),
}


@pytest.mark.parametrize("play", PLAYS)
def test_a_play_is_worth_what_its_writer_knew(play: str, ctx: Any) -> None:
    name, texts, right, process = PLAYS[play]
    task = next(t for t in AgentBenchMini().tasks(ctx) if t.id == name)
    rest = list(texts)
    backend = ScriptedBackend({name: lambda request: {"role": "assistant", "content": rest.pop(0)}}, takes_tools=False)
    row = play_one(ReactConfig(), backend, task, 0, 0)
    assert (row["right"], row["process"], rest) == (right, pytest.approx(process), [])
