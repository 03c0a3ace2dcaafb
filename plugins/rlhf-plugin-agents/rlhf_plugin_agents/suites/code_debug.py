"""Twelve functions with a fault: repaired ones are judged by asserts, in the sandbox."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from rlhf_core.config import RlhfError
from rlhf_plugin_agents.agents.code_executor import FIXED, RUN, code_in
from rlhf_plugin_agents.suites.scripts import Script
from rlhf_plugin_agents.suites.task import AgentTask, TaskSession, Verdict
from rlhf_plugin_agents.tools.box import ToolBox
from rlhf_plugin_agents.tools.config import PythonExecConfig
from rlhf_plugin_agents.tools.library import DATA, PROMPTS
from rlhf_plugin_agents.tools.python import PythonExec, programs
from rlhf_plugin_agents.trajectory import AgentTrajectory
from rlhf_plugin_code.config import SandboxSettings

TIERS = ("easy", "medium", "hard")
SHOWN = 2
"""Asserts that the task shows; the others are seen by nobody."""
QUESTION = PROMPTS["code_debug"]


def code_rows() -> list[Mapping[str, Any]]:
    """The rows: ``id``, ``function``, ``about``, ``buggy``, ``fixed`` and ``tests``."""
    return tomllib.loads((DATA / "code_debug.toml").read_text(encoding="utf-8"))["task"]


def code_tasks(tool: PythonExecConfig) -> list[AgentTask]:
    return [_task(row, tool) for row in code_rows()]


def _task(row: Mapping[str, Any], tool: PythonExecConfig) -> AgentTask:
    tier = row["id"].partition("/")[0]
    shown = "\n".join(row["tests"][:SHOWN])
    question = QUESTION.format(**{**row, "buggy": row["buggy"].strip(), "shown": shown, "fixed": FIXED})
    wrong = f"def {row['function']}(*values):\n    raise RuntimeError('no repair')"
    check = {"name": RUN, "arguments": {"code": f"{row['fixed']}\n{shown}\nprint('ok')"}}

    def open_session(seed: int) -> TaskSession:
        interpreter = PythonExec(tool.sandbox, stateful=tool.stateful)
        return TaskSession(ToolBox([tool.spec()], lambda name, arguments: interpreter.call(**arguments)))

    return AgentTask(
        row["id"],
        tier,
        ({"role": "user", "content": question},),
        open_session,
        lambda trajectory, room: judged(row, tool.sandbox, trajectory),
        {"oracle": Script([check], _answer(row["fixed"])), "wrong": Script([check], _answer(wrong))},
        level=TIERS.index(tier) + 1,
        judged_by=row,
    )


def _answer(code: str) -> str:
    return f"{FIXED}\n```python\n{code.strip()}\n```"


def judged(row: Mapping[str, Any], settings: SandboxSettings, trajectory: AgentTrajectory) -> Verdict:
    """The share of asserts that hold of the code in the last turn; process: some run ended without an error."""
    last = str(trajectory.turns[-1].message.get("content") or "") if trajectory.turns else trajectory.answer
    process = float(any(c.name == RUN and c.status == "ok" for c in trajectory.calls))
    try:
        report = programs(settings).tests(code_in(last), row["tests"], [row["function"]])
    except RlhfError as error:
        return Verdict(None, False, process, str(error))
    failed = next((f"{t}: {why}" for t, ok, why in zip(row["tests"], report.passed, report.reasons) if not ok), "")
    return Verdict(sum(report.passed) / len(report.passed), all(report.passed), process, failed)
