"""What agents do with what a model writes, and what they leave behind."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.config import ConfigError
from rlhf_core.data import DatasetError, Prompt, ToolCall
from rlhf_plugin_agents.agents.base import final_answer
from rlhf_plugin_agents.agents.config import AGENTS, ReactConfig, ZeroShotConfig
from rlhf_plugin_agents.agents.react import written_call
from rlhf_plugin_agents.backends.replay import ReplayBackend, read_trajectories
from rlhf_plugin_agents.backends.scripted import ScriptedBackend
from rlhf_plugin_agents.suites.own import default_tools
from rlhf_plugin_agents.tools.box import ToolBox
from rlhf_plugin_agents.tools.config import FilesConfig
from rlhf_plugin_agents.tools.library import Files
from rlhf_plugin_agents.trajectory import from_json


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def calls(*each: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    made = [
        {"id": f"c{i}", "type": "function", "function": {"name": n, "arguments": a}} for i, (n, a) in enumerate(each)
    ]
    return {"role": "assistant", "content": "", "tool_calls": made}


def turns(*messages: Any, takes_tools: bool = True) -> ScriptedBackend:
    rest = list(messages)
    return ScriptedBackend({"task": lambda request: rest.pop(0)}, takes_tools=takes_tools)


@pytest.fixture(scope="module")
def box(ctx: Any) -> ToolBox:
    return ToolBox.of(default_tools(ctx), ctx)


DEEP = '{"a":' * 30000
ODD = {
    "a plan that does not end": '{"steps":' + "[" * 30000,
    "an object that does not end": f"Action: {DEEP}",
    "the other form": f"Action: search\nAction Input: {DEEP}",
    "deep, and ended": 'Action: {"name": "search", "arguments": {"query": ' + "[" * 200 + "]" * 200 + "}}",
    "half of a character": 'Action: {"name": "files", "arguments": {"path": "\\ud800"}}',
    "half of a character, raw": "Final answer: \ud800",
}


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("odd", ODD)
def test_nothing_that_a_model_writes_ends_an_evaluation(odd: str, agent: str, box: ToolBox) -> None:
    backend = ScriptedBackend({"task": lambda request: said(ODD[odd])}, takes_tools=False)
    row = AGENTS[agent]().make(backend).run("?", box).as_json()
    json.dumps(row, ensure_ascii=False).encode()


def test_calls_that_cannot_be_kept_are_answered_with_an_error(box: ToolBox) -> None:
    deep: Any = "x"
    for _ in range(200):
        deep = [deep]
    backend = turns(calls(("search", {"query": deep}), ("files", {"path": "\ud800"})), said("Final answer: 1"))
    played = ReactConfig().make(backend).run("?", box)
    assert [(c.status, dict(c.arguments)) for c in played.calls] == [("error", {})] * 2
    assert "nested more than 64 levels deep" in played.calls[0].result
    assert "half of a character" in played.calls[1].result
    json.dumps(played.as_json(), ensure_ascii=False).encode()


def test_two_tools_of_one_name_are_refused(ctx: Any) -> None:
    tools = default_tools(ctx)
    with pytest.raises(ConfigError, match="2 tools are called 'files'"):
        ToolBox.of([*tools, FilesConfig(folder=".")], ctx)


def test_react_reads_results_and_answers(box: ToolBox) -> None:
    backend = turns(
        calls(("search", {"query": "Varde dam turbines"}), ("calculator", {"expression": "4 * 35"})),
        said("They have 140 MW.\nFinal answer: **140**"),
    )
    trajectory = ReactConfig().make(backend).run("How many megawatts?", box)
    assert (trajectory.answer, trajectory.stop_reason) == ("140", "answer")
    assert [(c.name, c.status) for c in trajectory.calls] == [("search", "ok"), ("calculator", "ok")]
    assert trajectory.calls[1].result == "140"
    assert [m["role"] for m in trajectory.messages] == ["system", "user", "assistant", "tool", "tool", "assistant"]
    assert trajectory.prompt_tokens > trajectory.completion_tokens > 0


def test_what_the_model_does_wrong_it_reads(box: ToolBox) -> None:
    wrong = [
        ("telephone", {}),
        ("search", {"words": "x"}),
        ("documents", {"title": "Nothing"}),
        ("files", {"path": "../x"}),
    ]
    backend = turns(calls(*wrong), said("Final answer: nothing"))
    trajectory = ReactConfig().make(backend).run("?", box)
    assert {c.status for c in trajectory.calls} == {"error"}
    shown = [c.result for c in trajectory.calls]
    assert "there is no tool 'telephone'" in shown[0]
    assert "'query' is a required property" in shown[1] or "Additional properties" in shown[1]
    assert "there is no document 'Nothing'" in shown[2]
    assert "there is no file '../x'" in shown[3]


def test_react_in_text_stops_a_model_that_makes_up_observations(box: ToolBox) -> None:
    backend = turns(
        said(
            'Thought: look\nAction: {"name": "search", "arguments": {"query": "Telle"}}\nObservation: it is 9 km long'
        ),
        said("Thought: known\nFinal answer: 214"),
        takes_tools=False,
    )
    trajectory = ReactConfig().make(backend).run("How long is the Telle?", box)
    assert trajectory.answer == "214"
    assert "river of 214 kilometres" in trajectory.messages[-2]["content"]


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ('Action: {"name": "a", "arguments": {"x": 1}} and more', "a", {"x": 1}),
        ('Thought: t\nAction: search\nAction Input: {"query": "q"}', "search", {"query": "q"}),
    ],
)
def test_both_written_forms_are_read(text: str, name: str, arguments: dict[str, Any]) -> None:
    call = written_call(text)
    assert call is not None
    assert (call.name, dict(call.arguments), call.error) == (name, arguments, "")


def test_no_call_and_broken_calls() -> None:
    assert written_call("Final answer: 3\nAction: none") is None
    assert written_call('FINAL ANSWER: 3\nAction: {"name": "now", "arguments": {}}') is None, "GAIA asks for capitals"
    assert written_call("I know it.") is None
    for text in ("Action: search[x]", "Action: []", 'Action: {"name": "a", "arguments": 3}', "Action: {"):
        call = written_call(text)
        assert call is not None
        assert "not JSON of the form" in call.error


def test_limits_are_stop_reasons(box: ToolBox) -> None:
    endless = ScriptedBackend({"task": lambda request: calls(("calculator", {"expression": "1"}))})
    assert ReactConfig(max_turns=3).make(endless).run("?", box).stop_reason == "max_turns"
    assert ReactConfig(max_calls=2).make(endless).run("?", box).stop_reason == "max_calls"
    assert ReactConfig(deadline_s=1e-9).make(endless).run("?", box).stop_reason == "deadline"


def test_a_backend_without_a_reply_is_no_wrong_answer(box: ToolBox) -> None:
    trajectory = ZeroShotConfig().make(ScriptedBackend({})).run("?", box)
    assert (trajectory.stop_reason, trajectory.answer) == ("backend_error", "")
    assert "no script for task 'task'" in trajectory.error


def test_a_trajectory_is_json_and_replays(box: ToolBox, tmp_path: Path) -> None:
    backend = turns(calls(("search", {"query": "Telle river"})), said("Final answer: 214"))
    task = Prompt("task", ({"role": "user", "content": "How long?"},))
    first = ReactConfig().make(backend).run(task, box, seed=3)
    (tmp_path / "rows.jsonl").write_text(json.dumps(first.as_json()) + "\n")
    kept = read_trajectories(tmp_path)
    assert kept[0].as_json() == json.loads(json.dumps(first.as_json()))
    again = ReactConfig().make(ReplayBackend(kept)).run(task, box, seed=3)
    assert (again.answer, [c.result for c in again.calls]) == (first.answer, [c.result for c in first.calls])


def test_a_replay_names_what_differs(box: ToolBox) -> None:
    backend = turns(calls(("search", {"query": "Telle river"})), said("Final answer: 214"))
    first = ReactConfig().make(backend).run("How long?", box)
    changed = ToolBox(box.specs, lambda name, arguments: "something else")
    again = ReactConfig().make(ReplayBackend([first])).run("How long?", changed)
    assert again.stop_reason == "backend_error"
    assert "request 2 differs from what was recorded" in again.error
    assert "of a message of role tool, they differ from character 1 on: '[1] " in again.error
    assert again.error.endswith("then, 'something else' now")
    other = ReactConfig().make(ReplayBackend([first])).run("How wide?", box)
    assert "its first request differs" in other.error


@pytest.mark.parametrize("raised", [SystemExit("bye"), KeyboardInterrupt("stop"), OSError("no")], ids=repr)
def test_whatever_a_tool_raises_is_read_by_the_agent_and_ctrl_c_is_not_a_tools(
    box: ToolBox, raised: BaseException
) -> None:
    def answer(name: str, arguments: Any) -> str:
        raise raised

    ends = ToolBox(box.specs, answer)
    call = ToolCall("search", {"query": "Telle"})
    with ThreadPoolExecutor(1) as plays:  # where `rlhf eval` plays
        record = plays.submit(ends.call, call).result()
    assert (record.status, record.result) == ("error", f"Error: {type(raised).__name__}: {raised}")
    if isinstance(raised, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            ends.call(call)


def test_another_version_is_refused() -> None:
    with pytest.raises(DatasetError, match="trajectory of version 99"):
        from_json({"version": 99})


def test_files_stay_in_their_folder(tmp_path: Path) -> None:
    from rlhf_core.rollouts import ToolError

    (tmp_path / "in").mkdir()
    (tmp_path / "secret").write_text("s")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "secret")
    files = Files(tmp_path / "in")
    for path in ("../secret", "link", "/etc/passwd", "nothing"):
        with pytest.raises(ToolError, match="there is no file"):
            files.call(path)


def test_an_answer_after_letters_that_grow_in_lower_case_is_whole() -> None:
    assert final_answer("İzmir, İstanbul.\nFINAL ANSWER: 42") == "42"
