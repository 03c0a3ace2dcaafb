"""code_debug, the agent that runs code, and python_exec; everything in the real sandbox."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from rlhf_core.config import ConfigError
from rlhf_core.rollouts import ToolError
from rlhf_plugin_agents.agents.code_executor import code_in
from rlhf_plugin_agents.agents.config import AGENTS, CodeExecutorConfig
from rlhf_plugin_agents.backends.config import ScriptedConfig
from rlhf_plugin_agents.backends.scripted import ScriptedBackend
from rlhf_plugin_agents.harness import play_one
from rlhf_plugin_agents.suites.code_config import CodeDebug
from rlhf_plugin_agents.suites.code_debug import code_rows
from rlhf_plugin_agents.tools.box import ToolBox
from rlhf_plugin_agents.tools.python import END, MARK, PythonExec, programs
from rlhf_plugin_code.config import SandboxSettings
from rlhf_plugin_code.sandbox import Ended

ROWS = {row["id"]: row for row in code_rows()}
SETTINGS = SandboxSettings(timeout_s=10.0)

if sys.platform != "linux":
    pytest.skip("the sandbox needs Linux", allow_module_level=True)


@pytest.fixture(scope="module", autouse=True)
def isolated() -> None:
    try:
        programs(SETTINGS).run("")
    except ConfigError as error:
        pytest.skip(f"no isolation on this machine: {error.why}")


def test_four_tasks_of_each_tier_with_five_or_six_asserts() -> None:
    assert [i.partition("/")[0] for i in ROWS] == ["easy"] * 4 + ["medium"] * 4 + ["hard"] * 4
    assert all(5 <= len(row["tests"]) <= 6 for row in ROWS.values())


def test_every_faulty_function_fails_and_every_repaired_one_passes() -> None:
    for name, row in ROWS.items():
        repaired = programs(SETTINGS).tests(row["fixed"], row["tests"], [row["function"]])
        assert all(repaired.passed), (name, repaired.reasons)
        faulty = programs(SETTINGS).tests(row["buggy"], row["tests"], [row["function"]])
        assert not all(faulty.passed), name
        assert not faulty.broken, name


def test_half_a_repair_of_the_subsequence_does_not_pass() -> None:
    row = ROWS["hard/2"]
    half = row["buggy"].replace("row[j + 1] = row[j]\n", "row[j + 1] = row[j] + 1\n")
    assert not all(programs(SETTINGS).tests(half, row["tests"], [row["function"]]).passed)


@pytest.mark.slow
@pytest.mark.parametrize("agent", AGENTS)
def test_oracle_and_always_wrong(agent: str, ctx: Any) -> None:
    suite = CodeDebug(max_per_category=None if agent == "code_executor" else 1)
    tasks = suite.tasks(ctx)
    assert [t.level for t in tasks] == sorted(t.level or 0 for t in tasks)
    for script, value in (("oracle", 1.0), ("wrong", 0.0)):
        for takes_tools in (True, False):
            backend = ScriptedConfig(script=script, takes_tools=takes_tools).make(tasks, ctx)
            rows = [play_one(suite.agent_config(agent), backend, t, 0, 0) for t in tasks]
            assert {r["value"] for r in rows} == {value}, [(r["task"], r["detail"], r["answer"]) for r in rows]
            assert {r["process"] for r in rows} == {float(agent != "zero_shot")}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def run(code: str, number: int) -> dict[str, Any]:
    function = {"name": "python_exec", "arguments": {"code": code}}
    return said("") | {"tool_calls": [{"id": f"c{number}", "type": "function", "function": function}]}


def test_write_run_read_the_traceback_and_revise(ctx: Any) -> None:
    """The share of asserts is the score: a repair that is only half right gets half."""
    task = next(t for t in CodeDebug().tasks(ctx) if t.id == "medium/3")
    row = ROWS[task.id]
    half = row["buggy"].replace("if open", "if not open_brackets or open")
    requests: list[Any] = []
    turns = [run(row["buggy"] + "\nis_balanced(')(')", 0), run(half + "\nprint(is_balanced(')('))", 1)]

    def write(request: Any) -> Any:
        requests.append(request)
        return [*turns, said(f"The stack was empty. **FIXED CODE:**\n```python\n{half}\n```")][len(requests) - 1]

    done = play_one(CodeExecutorConfig(), ScriptedBackend({task.id: write}), task, 0, 0)
    read = [m["content"] for m in requests[2].messages if m["role"] == "tool"]
    assert read[0].startswith("Error: exit code 1\nTraceback")
    assert read[0].endswith("IndexError: pop from empty list")
    assert read[1] == "False"
    assert (done["right"], done["process"], done["calls"]) == (False, 1.0, 2)
    assert done["value"] == pytest.approx(5 / 6)
    assert "assert is_balanced('((') is False" in done["detail"]


def test_runs_are_limited_and_brought_to_any_task() -> None:
    box = ToolBox([], lambda name, arguments: "")
    endless = ScriptedBackend({"task": lambda request: run("print(6 * 7)", len(request.messages))})
    made = CodeExecutorConfig(max_turns=8).make(endless).run("?", box)
    assert [c.result for c in made.calls[:6]] == ["42"] * 6
    assert "all 6 runs are used up" in made.calls[6].result
    assert made.stop_reason == "max_turns"


def test_fresh_programs_know_nothing_of_each_other_and_cells_do() -> None:
    fresh, cells = PythonExec(SETTINGS), PythonExec(SETTINGS, stateful=True)
    assert fresh.call("x = 2\nprint(x)") == "2"
    with pytest.raises(ToolError, match="NameError: name 'x' is not defined"):
        fresh.call("print(x)")
    assert cells.call("import math\nx = [1]\nprint('once')") == "once"
    with pytest.raises(ToolError, match="ZeroDivisionError") as failed:
        cells.call("x.append(2)\n1 / 0")
    assert 'File "cell 2", line 2' in str(failed.value)
    assert cells.call("x.append(math.floor(3.5))\nprint(x)") == "[1, 2, 3]"
    assert cells.call("x = 1") == "(nothing was printed)"
    cells.reset()
    with pytest.raises(ToolError, match="NameError"):
        cells.call("x")


def test_a_cell_may_hold_any_text() -> None:
    cells = PythonExec(SETTINGS, stateful=True)
    assert cells.call("MARKDOWN = CELL_TEXTS = '\U0001f9a6'\nprint(len(MARKDOWN))") == "1"
    assert cells.call("print(MARKDOWN, CELL_TEXTS)") == "\U0001f9a6 \U0001f9a6"


def test_a_cell_does_not_use_the_time_of_those_that_are_run_again() -> None:
    """The program has time for them twice; a cell that takes more than its own limit is stopped and forgotten."""
    limits: list[float] = []
    took = [9.0, 21.0, 8.0, 1.0]

    class Measured:
        timeout_s = 10.0

        def run(self, text: str, seconds: float) -> Ended:
            limits.append(seconds)
            earlier, last = [0.0, 9.0, 9.0, 17.0][len(limits) - 1], took[len(limits) - 1]
            return Ended("ended", 0, f"{MARK}{earlier}{END}printed", "", seconds, 0, earlier + last)

    cells = PythonExec(SETTINGS, stateful=True)
    cells.programs = Measured()  # pyright: ignore[reportAttributeAccessIssue]
    assert cells.call("a") == "printed"
    with pytest.raises(ToolError, match="stopped after 10 s"):
        cells.call("b")
    assert (cells.call("c"), cells.call("d")) == ("printed", "printed")
    assert limits == [10, 28, 28, 44]


def test_a_program_that_does_not_end_is_stopped_and_forgotten() -> None:
    cells = PythonExec(SandboxSettings(timeout_s=0.5), stateful=True)
    cells.call("x = 1")
    with pytest.raises(ToolError, match=r"stopped after 0\.5 s"):
        cells.call("x = 2\nwhile True: pass")
    assert cells.call("print(x)") == "1"
    with pytest.raises(ToolError, match="exit code 7"):
        cells.call("import os\nos._exit(7)")
    with pytest.raises(ToolError, match="an earlier cell ended the program"):
        cells.call("print(x)")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("FIXED CODE:\n```python\na = 1\n```\nand FIXED CODE:\n```\nb = 2\n```", "b = 2\n"),
        ("Fixed code: c = 3", "c = 3\n"),
        ("```python\na = 1\n```\nbetter:\n```python\nb = 2\n```", "b = 2\n"),
        ("It is so.\nFinal answer: 42", "42"),
        ("d = 4", "d = 4"),
    ],
)
def test_where_an_answer_is(text: str, code: str) -> None:
    assert code_in(text) == code


def test_tools_with_a_state_begin_afresh_with_each_episode(ctx: Any) -> None:
    from rlhf_core.data import Prompt, ToolCall
    from rlhf_testing import check_tool

    settings = {"tools": [{"name": "python_exec", "stateful": True}, "calculator"]}
    config = ctx.registry.config("environment", "tools", settings)
    assert not config.stateless  # pyright: ignore[reportAttributeAccessIssue]
    assert ctx.registry.config("environment", "tools", {"tools": ["python_exec"]}).stateless  # pyright: ignore
    remembers = "try:\n    print(x)\nexcept NameError:\n    x = 1"
    check_tool(config.tools[0], arguments={"code": remembers})  # pyright: ignore[reportAttributeAccessIssue]
    environment = config.build(ctx)
    prompt = Prompt("p", ({"role": "user", "content": "?"},))
    environment.reset(prompt, 0)
    environment.step([ToolCall("python_exec", {"code": "x = 5"}, "a")])
    assert environment.step([ToolCall("python_exec", {"code": "print(x)"}, "b")]) == ["5"]
    environment.reset(prompt, 1)
    (result,) = environment.step([ToolCall("python_exec", {"code": "print(x)"}, "c")])
    assert "NameError" in str(result)
