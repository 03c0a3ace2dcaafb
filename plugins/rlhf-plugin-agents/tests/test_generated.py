"""Tasks from a seed check themselves as the shipped ones do; faults come from their seed alone."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_core.config import ConfigError
from rlhf_core.data import Prompt, ToolCall
from rlhf_core.rollouts import ToolError
from rlhf_plugin_agents.agents.config import AGENTS, ReactConfig
from rlhf_plugin_agents.backends.config import ScriptedConfig
from rlhf_plugin_agents.backends.scripted import ScriptedBackend
from rlhf_plugin_agents.harness import play_one
from rlhf_plugin_agents.scorers import SCORERS
from rlhf_plugin_agents.suites.generated.questions import CATEGORIES
from rlhf_plugin_agents.suites.generated_config import AgentBenchGenerated
from rlhf_plugin_agents.suites.scripts import Script
from rlhf_plugin_agents.tools.faulty import EMPTY, Faults, FaultyCalls

LENGTHS = {"tool_use": {1}, "multi_step": {2, 3, 4}, "long_horizon": {6, 7, 8, 9, 10}, "flaky": {2, 3}}


def test_any_number_of_different_tasks_by_seed(ctx: Any) -> None:
    tasks = AgentBenchGenerated(count=30).tasks(ctx)
    assert len(tasks) == 210
    assert len({str(t.messages) for t in tasks}) > 200
    fewer = AgentBenchGenerated(count=2).tasks(ctx)
    assert [t.messages for t in fewer] == [t.messages for t in tasks if int(t.id.partition("/")[2]) < 2]
    other = AgentBenchGenerated(count=2, task_seed=1).tasks(ctx)
    assert not {str(t.messages) for t in fewer} & {str(t.messages) for t in other}
    for category, lengths in LENGTHS.items():
        assert {t.level for t in tasks if t.category == category} == lengths


@pytest.mark.parametrize("category", CATEGORIES)
def test_the_oracles_calls_return_what_the_answer_needs(category: str, ctx: Any) -> None:
    """Through the real tools, faults included; the reference is right, and wrong answers are wrong."""
    for task in AgentBenchGenerated(count=25, category=(category,)).tasks(ctx):
        row, box = task.judged_by[0], task.open(0).box
        script: Any = task.scripts["oracle"]
        results = "\n".join(box.call(ToolCall(c["name"], c["arguments"])).result for c in script.calls)
        for piece in row["evidence"]:
            assert piece in results, (task.id, row["prompt"], piece, results)
        for trap in row.get("traps", ()) if "files" in str(row["calls"]) else ():
            assert trap not in results
        score = SCORERS[row["scorer"]]
        assert score(row["answer"], row) == 1
        for answer in (*row["wrong"], "", "I am not sure.", row["prompt"]):
            assert score(answer, row) == 0, (task.id, answer)


@pytest.mark.parametrize("agent", AGENTS)
def test_oracle_and_always_wrong(agent: str, ctx: Any) -> None:
    suite = AgentBenchGenerated(count=2)
    tasks = suite.tasks(ctx)
    for script, wanted in (("oracle", True), ("wrong", False)):
        for takes_tools in (True, False):
            backend = ScriptedConfig(script=script, takes_tools=takes_tools).make(tasks, ctx)
            rows = [play_one(suite.agent_config(agent), backend, t, 0, 0) for t in tasks]
            off = [(r["task"], r["answer"], r["stop_reason"]) for r in rows if r["right"] != wanted]
            assert not off
            if wanted and agent != "zero_shot":
                assert {r["process"] for r in rows} == {1.0}


def test_of_an_ambiguous_question_the_user_says_which_reading_is_meant(ctx: Any) -> None:
    """And only who asks gets it right: the tools hold both values, the question does not tell."""
    suite = AgentBenchGenerated(count=8, category=("ambiguous",), asks=True)
    tasks = suite.tasks(ctx)
    assert {t.judged_by[0]["meant"] == t.judged_by[0]["readings"][0]["label"] for t in tasks} == {True, False}
    for takes_tools in (True, False):
        oracle, wrong = (
            ScriptedConfig(script=s, takes_tools=takes_tools).make(tasks, ctx) for s in ("oracle", "wrong")
        )
        rows = [play_one(ReactConfig(), oracle, t, 0, 0) for t in tasks]
        assert all(r["right"] and r["process"] == 1.0 for r in rows)
        assert [m["content"] for m in rows[0]["trajectory"]["messages"] if m["role"] == "user"][-1] == (
            f"I mean this one: {tasks[0].judged_by[0]['meant']}."
        )
        assert not any(play_one(ReactConfig(), wrong, t, 0, 0)["right"] for t in tasks)
        guess = ScriptedBackend({t.id: Script(t.scripts["oracle"].calls, t.judged_by[0]["answer"]) for t in tasks})  # pyright: ignore
        row = play_one(ReactConfig(), guess, tasks[0], 0, 0)
        assert (row["right"], row["detail"]) == (False, "the user was not asked which reading is meant")
    assert "asks" not in AgentBenchGenerated().model_dump()
    environment: Any = ctx.registry.config("environment", "agent_suite", {
        "suite": "agentbench_generated",
        "suite_settings": {"count": 1, "asks": True, "category": ["tool_use", "ambiguous"]},
    })  # fmt: skip
    assert environment.responds


def test_who_gives_up_at_the_first_error_is_seen_in_the_process(ctx: Any) -> None:
    """With every first call failing, the oracle that does not try again has made no call that counts."""
    suite = AgentBenchGenerated(count=3, category=("flaky",), faults={"error": 0.9, "in_a_row": 1})  # pyright: ignore
    tasks = suite.tasks(ctx)
    backend = ScriptedConfig().make(tasks, ctx)
    patient = [play_one(ReactConfig(max_turns=40), backend, t, 0, 0) for t in tasks]
    assert {r["process"] for r in patient} == {1.0}
    assert any(r["calls"] > t.level for r, t in zip(patient, tasks))  # pyright: ignore
    faulty: list[Any] = [t.open(0).state for t in tasks]
    for task, state in zip(tasks, faulty):
        for call in task.judged_by[0]["calls"]:
            fault = state.faults.of(call["name"], call["arguments"], 0)
            assert fault in ("", "error")
            assert state.faults.of(call["name"], call["arguments"], 1) in ("", "error")


def test_unknown_category_and_shares(ctx: Any) -> None:
    with pytest.raises(ConfigError, match="has no category 'flakey'"):
        AgentBenchGenerated(category=("flakey",)).tasks(ctx)
    with pytest.raises(ConfigError, match="are shares of all"):
        ctx.registry.config("tool", "faulty", {"tool": "calculator", "faults": {"error": 0.7, "empty": 0.7}})


def test_faults_are_seeded_limited_and_of_every_kind() -> None:
    faults = Faults(error=0.3, empty=0.2, conflicting=0.2, in_a_row=2, seed=5)
    drawn = [[faults.of("search", {"query": str(q)}, n) for n in range(12)] for q in range(200)]
    shares = {kind: sum(row[0] == kind for row in drawn) / 200 for kind in ("error", "empty", "conflicting", "")}
    assert shares == pytest.approx({"error": 0.3, "empty": 0.2, "conflicting": 0.2, "": 0.3}, abs=0.1)
    assert all("" in row[n : n + 3] for row in drawn for n in range(10))
    assert [faults.of("search", {"query": "7"}, n) for n in range(12)] == drawn[7]
    assert drawn != [[Faults(0.3, 0.2, 0.2, seed=6).of("search", {"query": str(q)}, 0)] for q in range(200)]


def test_what_each_fault_does() -> None:
    def answer(name: str, arguments: Any) -> str:
        return "It has 640 employees."

    with pytest.raises(ToolError, match="try again"):
        FaultyCalls(Faults(error=1)).wrap("search", {}, answer)
    assert FaultyCalls(Faults(empty=1)).wrap("search", {}, answer) == EMPTY
    other = FaultyCalls(Faults(conflicting=1)).wrap("search", {}, answer)
    assert other.startswith("It has ")
    assert other != answer("search", {})
    assert FaultyCalls(Faults(conflicting=1)).wrap("search", {}, lambda n, a: "none") == EMPTY
    assert FaultyCalls(Faults(error=1, in_a_row=1)).wrap is not None


def test_any_tool_with_faults_in_an_environment(ctx: Any) -> None:
    """Offered as it is; the same faults in every episode."""
    settings = {"tools": [{"name": "faulty", "tool": "calculator", "faults": {"error": 1.0, "in_a_row": 1}}]}
    config: Any = ctx.registry.config("environment", "tools", settings)
    assert [s["function"]["name"] for s in config.offered()] == ["calculator"]
    assert not config.stateless
    environment = config.build(ctx)
    for seed in range(2):
        environment.reset(Prompt("p", ({"role": "user", "content": "?"},)), seed)
        call = ToolCall("calculator", {"expression": "6 * 7"}, "a")
        (first,), (second,) = environment.step([call]), environment.step([call])
        assert "try again" in str(first)
        assert second == "42"


def test_latency_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = list[float]()
    monkeypatch.setattr("rlhf_plugin_agents.tools.faulty.time.sleep", waited.append)
    calls = FaultyCalls(Faults(latency_s=0.04))
    for n in range(5):
        calls.wrap("search", {"query": n}, lambda name, arguments: "")
    assert len(set(waited)) == 5
    assert all(0 < seconds <= 0.04 for seconds in waited)
