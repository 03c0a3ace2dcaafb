"""tau-bench retail: gold actions, changed ones, and recordings in the published form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data import DatasetError
from rlhf_plugin_agents.agents.config import AGENTS
from rlhf_plugin_agents.backends.config import ScriptedConfig
from rlhf_plugin_agents.harness import play_one
from rlhf_plugin_agents.suites.config import TauBench
from rlhf_plugin_agents.suites.retail import RetailStore
from rlhf_plugin_agents.suites.tau import reward, said_to_user, scripted_user
from rlhf_plugin_agents.suites.tau_files import database, read
from rlhf_plugin_agents.suites.tau_replay import replayed
from rlhf_plugin_agents.trajectory import AgentTrajectory, ModelTurn


@pytest.fixture(scope="module")
def folder(test_data: Path) -> Path:
    return test_data / "tau_bench_retail"


@pytest.mark.parametrize("split", ["test", "dev"])
def test_the_oracle_gets_every_task_and_who_is_always_wrong_none(split: Any, folder: Path, ctx: Any) -> None:
    suite = TauBench(path=str(folder), split=split)
    tasks = suite.tasks(ctx)
    assert len(tasks) == {"test": 115, "dev": 20}[split]
    tasks = tasks[::3]
    for script, wanted in (("oracle", True), ("wrong", False)):
        backend = ScriptedConfig(script=script).make(tasks, ctx)
        rows = [play_one(suite.agent_config("react"), backend, t, 0, 0) for t in tasks]
        assert [r["task"] for r in rows if r["right"] is not wanted] == []


@pytest.mark.parametrize("agent", [a for a in AGENTS if a != "zero_shot"])
def test_every_agent_that_calls_has_room_for_the_gold_actions(agent: str, folder: Path, ctx: Any) -> None:
    """A plan has a step at least, so tasks without an action are left out."""
    suite = TauBench(path=str(folder))
    tasks = [t for t in suite.tasks(ctx)[:30] if t.judged_by[0]]
    backend = ScriptedConfig().make(tasks, ctx)
    rows = [play_one(suite.agent_config(agent), backend, t, 0, 0) for t in tasks]
    assert [(r["task"], r["stop_reason"]) for r in rows if not r["right"]] == []


def test_a_dropped_action_costs_the_reward_unless_the_database_is_the_same(folder: Path) -> None:
    """Of the first 25 tasks each action is left out once; databases are compared whole, not by their digest."""
    same = other = 0
    for task in read(folder, "retail_tasks_test.json")[:25]:
        gold = _after(folder, task["actions"])
        for n in range(len(task["actions"])):
            store = _after(folder, [*task["actions"][:n], *task["actions"][n + 1 :]])
            value, _ = reward(task, folder, store, [" ".join(task["outputs"])])
            assert value == float(store.data == gold.data)
            same, other = same + (value == 1.0), other + (value == 0.0)
    assert same > 20
    assert other > 20


def test_outputs_must_be_said(folder: Path) -> None:
    task = next(t for t in read(folder, "retail_tasks_test.json") if t["outputs"])
    store = _after(folder, task["actions"])
    assert reward(task, folder, store, [])[0] == 0.0
    assert reward(task, folder, store, [f"It is {' and '.join(task['outputs'])}."]) == (1.0, "")


def test_functions_refuse_as_published(folder: Path) -> None:
    store = RetailStore(database(folder))
    assert store.call("get_order_details", {"order_id": "#W0"}) == "Error: order not found"
    assert store.call("no_such", {}) == "Unknown action no_such"
    assert store.call("calculate", {"expression": "(2 + 3) * 1.125"}) == "5.62"
    assert store.call("calculate", {"expression": "__import__('os')"}) == "Error: invalid characters in expression"
    assert store.call("calculate", {"expression": "1 / 0"}) == "Error: division by zero"
    assert "missing 1 required positional argument: 'email'" in store.call("find_user_id_by_email", {})
    assert store.call("find_user_id_by_email", {}).startswith("Error: FindUserIdByEmail.invoke() missing")
    assert store.digest == RetailStore(database(folder)).digest


def test_the_scripted_user_says_yes_to_questions_and_leaves() -> None:
    user = scripted_user()
    assert user("Shall I?") == "Yes, please go ahead."
    assert user("Done.") is None
    assert [user("And?") for _ in range(9)].count(None) == 4


def _after(folder: Path, actions: Any) -> RetailStore:
    store = RetailStore(database(folder))
    for action in actions:
        store.call(action["name"], action["kwargs"])
    return store


def recording(folder: Path, number: int) -> dict[str, Any]:
    """The gold actions of a task, written as tau-bench publishes trajectories."""
    task, store = read(folder, "retail_tasks_test.json")[number], RetailStore(database(folder))
    messages: list[dict[str, Any]] = [{"role": "system", "content": "policy"}, {"role": "user", "content": "Hello"}]
    for n, action in enumerate(task["actions"]):
        call = {
            "id": f"c{n}",
            "type": "function",
            "function": {"name": action["name"], "arguments": json.dumps(action["kwargs"])},
        }
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        result = store.call(action["name"], action["kwargs"])
        messages.append({"role": "tool", "tool_call_id": f"c{n}", "name": action["name"], "content": result})
    messages.append({"role": "assistant", "content": f"Done. {' '.join(task['outputs'])}"})
    messages.append({"role": "user", "content": "###STOP###"})
    return {"task_id": number, "reward": 1.0, "info": {}, "traj": messages, "trial": 0}


def test_a_recording_is_judged_and_every_differing_result_named(folder: Path, rlhf: Any) -> None:
    rows = [recording(folder, n) for n in range(4)]
    rows[2]["traj"][3]["content"] = "somebody_else"
    del rows[3]["traj"][-4:-2]  # the last action, which changes the database
    Path("published.json").write_text(json.dumps(rows))
    done = rlhf("eval", "tau_bench", "--data", folder, "--replay", "published.json", "--json")
    assert done.code == 0, done.err
    (one,) = json.loads(done.out)["evaluations"]
    assert one["right"]["value"] == 0.75
    assert one["recording"]["same_reward"] == 3
    assert one["recording"]["differing_results"] == 1
    (example,) = one["recording"]["examples"]
    assert (example["task"], example["call"], example["recorded"]) == ("test/2", 1, "somebody_else")


def test_a_replay_shows_where_results_differ_and_which_rewards_do(folder: Path, rlhf: Any) -> None:
    rows = [recording(folder, n) for n in range(3)]
    longest = max((m for m in rows[1]["traj"] if m["role"] == "tool"), key=lambda m: len(m["content"]))
    at = len(longest["content"]) - 15
    longest["content"] = f"{longest['content'][:at]}X{longest['content'][at:]}"
    rows[2]["reward"] = 0.0
    Path("published.json").write_text(json.dumps(rows))
    done = rlhf("eval", "tau_bench", "--data", folder, "--replay", "published.json")
    assert done.code == 0, done.err
    assert "2 of 3 have the published reward; 1 results differ from the recording" in done.out
    assert "  test/2, trial 0: reward 1; the published reward is 0" in done.out
    (line,) = [line for line in done.out.splitlines() if "they differ from" in line]
    then, _, now = line.partition(" then, ")
    assert line.startswith("  test/1, trial 0, call ")
    assert f"from character {at + 1} on: '…" in line
    assert ("X" in then, then.replace("X", "").partition("…")[2]) == (True, now.partition("…")[2].removesuffix(" now"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"results": [{"task_id": 0}]}', "it is an object with the keys results"),
        ('{"results": [{"task_id": 0}]}\n', "it is an object with the keys results"),
        ('{\n "info": {},\n "results": []\n}\n', "it is an object with the keys info, results"),
        ('"text"\n', "it is 'text'"),
        ("no JSON\n", "Expecting value: line 1"),
        ('{"é": 1}', "is not text"),
        ("", "is empty"),
        ("\n\n", "is empty"),
    ],
)
def test_a_recording_of_another_form_is_named(folder: Path, tmp_path: Path, rlhf: Any, text: str, says: str) -> None:
    path = tmp_path / "recording.json"
    path.write_text(text, encoding="latin-1")
    done = rlhf("eval", "tau_bench", "--data", folder, "--replay", path)
    assert done.code == 2
    assert says in " ".join(done.err.split()), done.err
    assert '[{"task_id", "reward", "traj"}, ...]' in done.err


def test_bad_recordings_and_folders_are_refused(folder: Path, tmp_path: Path, rlhf: Any) -> None:
    path = tmp_path / "p.json"
    for rows, message in (
        ([{"task_id": 1}], "has no reward"),
        ([{**recording(folder, 0), "task_id": 999}], "no task 999"),
    ):
        path.write_text(json.dumps(rows))
        with pytest.raises(DatasetError, match=message):
            replayed(path, folder, "test")
    done = rlhf("eval", "tau_bench", "--data", tmp_path, "--backend", "scripted")
    assert (done.code, "there is no 'retail_tools.json'" in done.err) == (2, True)
    done = rlhf("eval", "tau_bench", "--backend", "scripted")
    assert (done.code, "has no rows" in done.err) == (2, True)


def test_thoughts_are_not_told_to_the_user() -> None:
    turns = ("Thought: 54.04\nAction: {}", "Thought: 54.04\nFinal answer: Sorry.", "54.04 it is.")
    made = [ModelTurn(role, "", {"role": "assistant", "content": text}) for role, text in
            zip(("agent", "agent", "extractor"), turns)]  # fmt: skip
    assert said_to_user(AgentTrajectory("t", "react", "b", (), made, (), "")) == ["Sorry."]
    spoken = ModelTurn("agent", "", {"role": "assistant", "content": "It is 54.04."})
    assert said_to_user(AgentTrajectory("t", "react", "b", (), (spoken,), (), "")) == ["It is 54.04."]
