"""What a bounded context loses, and a model that knows nothing but what it sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_plugin_agents.agents.config import AGENTS, MultiAgentConfig, ScratchpadConfig
from rlhf_plugin_agents.backends.base import ContextFull, ModelRequest
from rlhf_plugin_agents.backends.config import ScriptedConfig
from rlhf_plugin_agents.backends.scripted import seen
from rlhf_plugin_agents.harness import play_one
from rlhf_plugin_agents.suites.config import Chains

REQUEST = ModelRequest(({"role": "system", "content": "a b c"}, {"role": "user", "content": "d  e\nf"}))


@pytest.mark.parametrize(
    ("cut", "left"),
    [("oldest", ["", "d  e\nf"]), ("newest", ["a b c", ""]), ("middle", ["a b", "f"])],
)
def test_what_is_lost(cut: Any, left: list[str]) -> None:
    assert [m["content"] for m in seen(REQUEST, 3, cut).messages] == left
    assert seen(REQUEST, 6, cut) is REQUEST
    with pytest.raises(ContextFull, match="6 words, and the model reads 5"):
        seen(REQUEST, 5, "refuse")


@pytest.mark.parametrize("takes_tools", [True, False])
def test_the_reader_finds_its_way_where_it_sees_everything(takes_tools: bool, ctx: Any) -> None:
    tasks = Chains(hops=(3, 7), count=2).tasks(ctx)
    backend = ScriptedConfig(script="reader", takes_tools=takes_tools).make(tasks, ctx)
    for agent in AGENTS:
        rows = [play_one(Chains().agent_config(agent), backend, t, 0, 0) for t in tasks]
        assert {r["right"] for r in rows} == {agent != "zero_shot"}, agent
        assert {r["process"] for r in rows} == {float(agent != "zero_shot")}, agent


def test_the_crossover_and_the_command_for_it(rlhf: Any) -> None:
    """With 100 words and facts of one sentence the list ends at 3 hops and the scratchpad, whose last request holds no
    more than the list, one later; the docs quote this record."""
    words = ["--backend", "scripted", "--set", "backend.script=reader", "--set", "backend.context_words=100"]
    agents = ["--agent", "multi_agent", "--agent", "scratchpad", "--set", "hops=[3,4,5]", "--set", "count=1"]
    done = rlhf("eval", "chains", *words, *agents, "--json")
    assert done.code == 0, done.err
    flat, pad = json.loads(done.out)["evaluations"]
    assert [flat["categories"][f"hops_{n}"]["right"]["value"] for n in (3, 4, 5)] == [1, 0, 0]
    assert [pad["categories"][f"hops_{n}"]["right"]["value"] for n in (3, 4, 5)] == [1, 1, 0]
    assert flat["stop_reasons"] == {"context_full": 2, "answer": 1}
    refused = rlhf("eval", "agentbench_mini", *words)
    assert refused.code == 2
    assert "has no script 'reader'" in refused.err


def test_the_record_can_be_measured_again() -> None:
    script = pytest.importorskip("scripts.bench.context_crossover")
    record = json.loads((Path(script.__file__).parents[2] / "docs/bench/context_crossover.json").read_text())["cases"][
        "run"
    ]["results"]
    row = next(r for r in record["conditions"] if (r["facts"], r["window"], r["cut"]) == ("49 words", 300, "refuse"))
    assert row["crossover"] == 6
    places = [record["hops"].index(n) for n in (5, 6)]
    again = script.condition("49 words", 300, "refuse", (5, 6), 1)
    for name in ("flat list", "scratchpad"):
        assert again[name] == [row[name][i] for i in places]


def test_the_scratchpad_costs_a_request_for_each_step(ctx: Any) -> None:
    task = Chains(hops=(8,), count=1).tasks(ctx)
    backend = ScriptedConfig(script="reader").make(task, ctx)
    requests = [play_one(c, backend, task[0], 0, 0)["requests"] for c in (MultiAgentConfig(), ScratchpadConfig())]
    assert requests == [2 + 2 * 8, 2 + 3 * 8]
