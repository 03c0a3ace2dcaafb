"""Plans, isolated executors and the scratchpad."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlhf_plugin_agents.agents.config import AGENTS, MultiAgentConfig, PlanAndExecuteConfig, ScratchpadConfig
from rlhf_plugin_agents.agents.plans import BadPlan, read_plan
from rlhf_plugin_agents.agents.react import call_in_text
from rlhf_plugin_agents.backends.config import ScriptedConfig
from rlhf_plugin_agents.backends.scripted import ScriptedBackend
from rlhf_plugin_agents.harness import play_one
from rlhf_plugin_agents.suites.chains import SPEC
from rlhf_plugin_agents.suites.config import AgentBenchMini, Chains


def plan(*steps: dict[str, Any]) -> str:
    return json.dumps({"steps": [{"tool": "documents", **s} for s in steps], "synthesis": "s"})


def test_a_plan_is_ordered_by_what_its_steps_need() -> None:
    text = f"```json\n{plan({'id': 2, 'task': 'b', 'after': [1]}, {'id': 1, 'task': 'a'})}\n```"
    made = read_plan(text, [SPEC])
    assert ([s.task for s in made.steps], made.synthesis) == (["a", "b"], "s")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("I would search.", "not JSON of the form"),
        ("[1, 2]", "not JSON of the form"),
        ('{"steps": 3}', "not JSON of the form"),
        ('{"steps": ["a"]}', "not JSON of the form"),
        ('{"steps": []}', "has no steps"),
        (plan({"id": 1, "after": [2]}, {"id": 2, "after": [1]}), "is circular"),
        (plan({"id": 1, "after": [7]}), "comes after step 7, which does not exist"),
        (plan({"id": 1}, {"id": 1}), "ids must differ"),
        (json.dumps({"steps": [{"id": 1, "tool": "telephone"}]}), "has the tool 'telephone'; there are documents"),
    ],
)
def test_bad_plans_say_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(BadPlan, match=message):
        read_plan(text, [SPEC])


@pytest.mark.parametrize("config", [PlanAndExecuteConfig(), MultiAgentConfig(), ScratchpadConfig()])
def test_a_bad_plan_may_be_written_again_once(config: Any, ctx: Any) -> None:
    task = Chains(hops=(2,), count=1).tasks(ctx)[0]
    oracle, asked = task.scripts["oracle"], list[str]()

    def first_bad(request: Any) -> Any:
        asked.append(request.role)
        return {"role": "assistant", "content": "no plan"} if len(asked) == 1 else oracle(request)

    made = config.make(ScriptedBackend({"task": first_bad})).run(task.messages[0]["content"], task.open(0).box)
    assert task.judge(made, task.open(0)).right
    assert asked[:2] == ["planner", "planner"]
    never = ScriptedBackend({"task": lambda request: {"role": "assistant", "content": "{}"}})
    stopped = config.make(never).run("?", task.open(0).box)
    assert (stopped.stop_reason, stopped.answer, len(stopped.turns)) == ("bad_plan", "", 2)
    assert "not JSON of the form" in stopped.error


def test_executors_see_their_sub_task_and_one_tool_alone(ctx: Any) -> None:
    task = next(t for t in AgentBenchMini().tasks(ctx) if t.id == "multi_step/5")
    requests: list[Any] = []

    def watched(request: Any) -> Any:
        requests.append(request)
        return task.scripts["oracle"](request)

    made = (
        MultiAgentConfig().make(ScriptedBackend({"task": watched})).run(task.messages[0]["content"], task.open(0).box)
    )
    assert [r.role for r in requests] == ["planner", *["executor", "extractor"] * 3, "synthesizer"]
    third = [r for r in requests if r.role == "executor"][2]
    assert [t["function"]["name"] for t in third.tools] == ["calculator"]
    assert [m["role"] for m in third.messages] == ["system", "user"]
    assert third.messages[1]["content"].startswith("Sub-task 3:")
    assert "8849" in third.messages[1]["content"], "facts of the earlier steps, which it may need"
    assert task.messages[0]["content"] not in third.messages[1]["content"]
    assert made.answer == "4043"


@pytest.mark.parametrize("takes_tools", [True, False])
def test_an_executor_makes_one_call_with_its_own_tool(takes_tools: bool, ctx: Any) -> None:
    """Whatever a model writes, or was told by a document: the second call is not made, nor one of another tool."""
    steps = plan(*({"id": n, "task": "find it"} for n in (1, 2)))
    wanted = [[("documents", {"title": "Kestrel Works"}), ("documents", {"title": "Orlinghaven"})],
              [("files", {"path": "inventory.csv"})]]  # fmt: skip

    def answer(request: Any) -> Any:
        if request.role != "executor":
            return {"role": "assistant", "content": steps if request.role == "planner" else "so it is"}
        calls = wanted[0 if "Sub-task 1" in request.messages[-1]["content"] else 1]
        if request.form == "text":
            return {"role": "assistant", "content": "\n".join(call_in_text(*c) for c in calls)}
        made = [{"id": f"c{i}", "function": {"name": n, "arguments": a}} for i, (n, a) in enumerate(calls)]
        return {"role": "assistant", "content": "", "tool_calls": made}

    box = AgentBenchMini().tasks(ctx)[0].open(0).box
    played = MultiAgentConfig().make(ScriptedBackend({"task": answer}, takes_tools=takes_tools)).run("?", box)
    assert [c.name for c in played.calls if c.status == "ok"] == ["documents"]
    assert played.calls[-1].result == "Error: there is no tool 'files' here; there is documents"
    assert [c.result for c in played.calls[1:-1]] == ["Error: not made: there is one call here"] * takes_tools


def test_the_scratchpad_stays_short_where_the_list_grows(ctx: Any) -> None:
    task = Chains(hops=(8,), count=1).tasks(ctx)[0]

    def longest(config: Any) -> int:
        seen: list[int] = []

        def watched(request: Any) -> Any:
            if request.role == "executor":
                seen.append(len(request.messages[-1]["content"].split()))
            return task.scripts["oracle"](request)

        config.make(ScriptedBackend({"task": watched})).run(task.messages[0]["content"], task.open(0).box)
        return max(seen)

    assert longest(ScratchpadConfig(scratchpad_words=30)) < 50 < 100 < longest(MultiAgentConfig())


@pytest.mark.parametrize("agent", AGENTS)
def test_chains_of_every_length(agent: str, ctx: Any) -> None:
    suite = Chains(count=2)
    tasks = suite.tasks(ctx)
    assert [t.level for t in tasks] == [2, 2, 4, 4, 6, 6, 8, 8]
    for script, wanted in (("oracle", True), ("wrong", False)):
        backend = ScriptedConfig(script=script).make(tasks, ctx)
        rows = [play_one(suite.agent_config(agent), backend, t, 0, 0) for t in tasks]
        assert {r["right"] for r in rows} == {wanted}, [(r["task"], r["answer"], r["stop_reason"]) for r in rows]
        if wanted and agent != "zero_shot":
            assert [r["calls"] for r in rows] == [t.level for t in tasks]
    again = Chains(count=2).tasks(ctx)
    assert [t.messages for t in again] == [t.messages for t in tasks]
    assert [t.messages for t in Chains(count=2, chain_seed=1).tasks(ctx)] != [t.messages for t in tasks]
