"""Tasks over the shipped corpus and files: ``agentbench_mini``, and whatever has rows of its form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.data import DatasetError
from rlhf_plugin_agents.scorers import RIGHT, SCORERS, sequence_match
from rlhf_plugin_agents.suites.scripts import Script
from rlhf_plugin_agents.suites.task import AgentTask, TaskSession, Verdict
from rlhf_plugin_agents.tools.box import ToolBox
from rlhf_plugin_agents.tools.library import DATA
from rlhf_plugin_agents.trajectory import AgentTrajectory
from rlhf_plugin_episodes.config import ToolConfig

NEEDED = ("id", "category", "prompt", "calls", "answer", "scorer", "wrong")


@cache
def rows_of(path: Path) -> tuple[Mapping[str, Any], ...]:
    rows: list[Mapping[str, Any]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        row = json.loads(line)
        missing = [k for k in NEEDED if k not in row]
        if missing or row["scorer"] not in SCORERS or any(row["id"] == r["id"] for r in rows):
            why = f"it has no {', '.join(missing)}" if missing else "its id is taken, or there is no such scorer"
            raise DatasetError("a row is not a task", where=f"{path}, line {number}", why=why)
        rows.append(row)
    return tuple(rows)


def default_tools(ctx: BuildContext) -> list[ToolConfig]:
    named = ("rlhf-plugin-agents/search", "rlhf-plugin-agents/documents", "rlhf-plugin-agents/files")
    tools = [ctx.registry.config("tool", name) for name in (*named, "rlhf-plugin-episodes/calculator")]
    return [t for t in tools if isinstance(t, ToolConfig)]


def own_tasks(
    rows: tuple[Mapping[str, Any], ...], ctx: BuildContext, further: Sequence[ToolConfig] = ()
) -> list[AgentTask]:
    shared = ToolBox.of([*default_tools(ctx), *further], ctx)
    return [own_task(row, shared) for row in rows]


def own_task(row: Mapping[str, Any], shared: ToolBox, system: str = "") -> AgentTask:
    return AgentTask(
        row["id"],
        row["category"],
        ({"role": "user", "content": row["prompt"]},),
        lambda seed: TaskSession(shared.only([s["function"]["name"] for s in shared.specs])),
        lambda trajectory, room: judged(row, trajectory),
        {"oracle": Script(row["calls"], row["answer"]), "wrong": Script(row["calls"], row["wrong"][0])},
        system=system,
        level=row.get("level"),
        judged_by=row,
    )


def judged(row: Mapping[str, Any], trajectory: AgentTrajectory) -> Verdict:
    """The answer by the row's scorer, the calls by their order; failed calls to other tools than wanted count, too."""
    value = SCORERS[row["scorer"]](trajectory.answer, row)
    wanted = [c["name"] for c in row["calls"]]
    process = sequence_match([c.name for c in trajectory.calls], wanted)
    return Verdict(value, value >= RIGHT.get(row["scorer"], 1.0), process, f"wanted: {row['answer']}")


def mini_rows() -> tuple[Mapping[str, Any], ...]:
    return rows_of(DATA / "agentbench_mini.jsonl")
