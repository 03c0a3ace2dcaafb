"""The leaderboard's tasks: our checker by hand, and on its own files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data import DatasetError
from rlhf_plugin_agents.agents.config import PlanAndExecuteConfig, ReactConfig
from rlhf_plugin_agents.backends.base import ContextFull, ModelReply
from rlhf_plugin_agents.backends.config import ScriptedConfig
from rlhf_plugin_agents.harness import Job, play_one
from rlhf_plugin_agents.suites.bfcl import fault_in_calls, load, task_of
from rlhf_plugin_agents.suites.config import Bfcl

PROPERTIES = {
    "x": {"type": "integer"},
    "rate": {"type": "float"},
    "place": {"type": "string"},
    "days": {"type": "array", "items": {"type": "string"}},
    "filter": {"type": "dict"},
}
FUNCTION = {
    "name": "a.f",
    "description": "F.",
    "parameters": {"type": "dict", "properties": PROPERTIES, "required": ["x"]},
}
ANSWER = {
    "a.f": {
        "x": [3, 4],
        "rate": ["", 2],
        "place": ["New York, NY", ""],
        "days": [["Mon", "Tue"], ""],
        "filter": [{"a": [1], "b": ["two", ""]}, ""],
    }
}


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ({"x": 3}, True),
        ({"x": 5}, False),
        ({"x": 3.0}, False),
        ({"x": "3"}, False),
        ({}, False),
        ({"x": 4, "rate": 2}, True),
        ({"x": 4, "rate": 2.0}, True),
        ({"x": 3, "place": "new york ny"}, True),
        ({"x": 3, "place": "Boston"}, False),
        ({"x": 3, "days": ["mon", "TUE"]}, True),
        ({"x": 3, "days": ["Tue", "Mon"]}, False),
        ({"x": 3, "filter": {"a": 1}}, True),
        ({"x": 3, "filter": {"a": 1, "b": "Two"}}, True),
        ({"x": 3, "filter": {"b": "two"}}, False),
        ({"x": 3, "filter": {"a": 1, "c": 1}}, False),
        ({"x": 3, "y": 1}, False),
    ],
)
def test_the_rules_by_hand(arguments: dict[str, Any], right: bool) -> None:
    assert (fault_in_calls([FUNCTION], [("a.f", arguments)], [ANSWER]) is None) is right


def test_counts_names_and_order() -> None:
    other = {"a.f": {"x": [9]}}
    both = [("a.f", {"x": 9}), ("a.f", {"x": 3})]
    assert fault_in_calls([FUNCTION], both, [ANSWER, other]) is None
    assert fault_in_calls([FUNCTION], both[:1], [ANSWER, other]) == "1 calls, 2 are wanted"
    assert "is not 'a.f'" in str(fault_in_calls([FUNCTION], [("a_f", {"x": 3})], [ANSWER]))
    assert fault_in_calls([FUNCTION], [], []) is None
    assert fault_in_calls([FUNCTION], both, []) == "2 calls, 0 are wanted"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    def write(name: str, *rows: dict[str, Any]) -> None:
        (tmp_path / name).write_text("".join(json.dumps(r) + "\n" for r in rows))

    ask = [[{"role": "user", "content": "Do it."}]]
    write("BFCL_v4_simple_python.json", {"id": "s", "question": ask, "function": [FUNCTION]})
    write("possible_answer_BFCL_v4_simple_python.json", {"id": "s", "ground_truth": [ANSWER]})
    write("BFCL_v4_parallel.json", {"id": "p", "question": ask, "function": [FUNCTION]})
    write("possible_answer_BFCL_v4_parallel.json", {"id": "p", "ground_truth": [ANSWER, {"a.f": {"x": [9]}}]})
    write("BFCL_v4_irrelevance.json", {"id": "i", "question": ask, "function": [FUNCTION]})
    return tmp_path


@pytest.mark.parametrize("takes_tools", [True, False])
def test_oracle_and_wrong_on_each_category(folder: Path, takes_tools: bool, ctx: Any) -> None:
    tasks = Bfcl(path=str(folder)).tasks(ctx)
    assert [t.category for t in tasks] == ["simple", "parallel", "irrelevance"]
    for script, wanted in (("oracle", True), ("wrong", False)):
        backend = ScriptedConfig(script=script, takes_tools=takes_tools).make(tasks, ctx)
        rows = [play_one(ReactConfig(), backend, t, 0, 0) for t in tasks]
        assert {r["right"] for r in rows} == {wanted}, rows
    offered = tasks[0].open(0).box.specs[0]["function"]
    assert offered["name"] == "a_f"
    assert offered["parameters"]["properties"]["rate"]["type"] == "number"


def test_bad_files_are_refused(folder: Path, tmp_path: Path, ctx: Any) -> None:
    (folder / "possible_answer_BFCL_v4_simple_python.json").unlink()
    with pytest.raises(DatasetError, match="'s' has no possible answer"):
        load(folder)
    (folder / "BFCL_v4_simple_python.json").write_text("{")
    with pytest.raises(DatasetError, match="is not a file of JSON lines"):
        load(folder)
    row = {"id": "i", "question": [[]], "function": [FUNCTION]}
    (folder / "BFCL_v4_irrelevance.json").write_text(2 * (json.dumps(row) + "\n"))
    (folder / "BFCL_v4_simple_python.json").unlink()
    with pytest.raises(DatasetError, match="2 tasks of the name 'i'"):
        Bfcl(path=str(folder)).tasks(ctx)
    with pytest.raises(DatasetError, match="there is no folder"):
        load(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match="there are no questions"):
        load(tmp_path / "empty")


def test_every_published_question_has_an_oracle_and_a_wrong_answer(test_data: Path, ctx: Any) -> None:
    suite = Bfcl(path=str(test_data / "bfcl"))
    tasks = suite.tasks(ctx)
    assert {c: sum(t.category == c for t in tasks) for c in ("simple", "parallel", "irrelevance")} == {
        "simple": 400,
        "parallel": 200,
        "irrelevance": 240,
    }
    tasks = tasks[::4]
    for script, wanted in (("oracle", True), ("wrong", False)):
        backend = ScriptedConfig(script=script).make(tasks, ctx)
        rows = [play_one(ReactConfig(), backend, t, 0, 0) for t in tasks]
        assert [r["task"] for r in rows if r["right"] is not wanted] == []


def test_rows_of_other_possible_answers_are_not_gone_on_with(ctx: Any) -> None:
    tasks = [task_of(ROW, "simple", [{"a.f": {"x": [x]}}]) for x in (3, 4)]
    job = Job(Bfcl(), ReactConfig(), ScriptedConfig())
    first, second = (job.settings([task])["tasks"]["hash"] for task in tasks)
    assert first != second


@pytest.mark.parametrize("agent", [ReactConfig(), PlanAndExecuteConfig()])
def test_not_having_answered_is_not_declining(agent: Any) -> None:
    class Refuses:
        name, takes_tools = "refuses", True

        def complete(self, request: Any) -> Any:
            if request.role == "planner":
                return ModelReply({"role": "assistant", "content": "no plan"})
            raise ContextFull("too long")

    row = play_one(agent, Refuses(), task_of(ROW, "irrelevance", ()), 0, 0)  # type: ignore[arg-type]
    assert (row["value"], row["right"]) == (0.0, False)
    assert row["stop_reason"] in ("context_full", "bad_plan")


ROW = {"id": "q", "question": [[{"role": "user", "content": "f of 3?"}]], "function": [FUNCTION]}
