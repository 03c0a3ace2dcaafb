"""Trajectories in the form that tau-bench publishes, played again: are results and rewards the same?"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.api import DatasetError, ToolCall
from rlhf_plugin_agents.suites.retail import RetailStore
from rlhf_plugin_agents.suites.tau import arguments_of, database, read, reward
from rlhf_plugin_agents.tools.box import ToolBox
from rlhf_plugin_agents.trajectory import AgentTrajectory, CallRecord, ModelTurn

NEEDED = ("task_id", "reward", "traj")


def is_published(path: Path) -> bool:
    """Whether a file has that form: one JSON list."""
    if not path.is_file():
        return False
    with path.open(encoding="utf-8") as file:
        return file.read(200).lstrip().startswith("[")


def replayed(path: Path, folder: Path, split: str) -> list[dict[str, Any]]:
    """A row per trajectory, as of an evaluation, with ``published`` (its reward) and ``differing`` (results).

    Raises:
        DatasetError: a trajectory has not the form, or its task does not exist.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DatasetError(f"'{path}' is no JSON: {error}") from error
    tasks, specs = read(folder, f"retail_tasks_{split}.json"), read(folder, "retail_tools.json")
    for number, row in enumerate(rows):
        missing = [k for k in NEEDED if not isinstance(row, Mapping) or k not in row]
        if missing:
            raise DatasetError(f"a trajectory has no {missing[0]}", where=f"{path}, number {number}")
        if not 0 <= row["task_id"] < len(tasks):
            raise DatasetError(
                f"there is no task {row['task_id']}",
                where=f"{path}, number {number}",
                fix="--set split=train, dev or test",
            )
    return [_one(row, tasks[row["task_id"]], folder, specs, split) for row in rows]


def _one(
    row: Mapping[str, Any], task: Mapping[str, Any], folder: Path, specs: Sequence[Any], split: str
) -> dict[str, Any]:
    store = RetailStore(database(folder))
    box = ToolBox(specs, store.call, strict=False)
    calls: list[CallRecord] = []
    said: list[str] = []
    differing: list[dict[str, Any]] = []
    recorded = [m for m in row["traj"] if m["role"] == "tool"]
    for message in (m for m in row["traj"] if m["role"] == "assistant"):
        # tau-bench makes the first call of a turn, and leaves the others out.
        for call in (message.get("tool_calls") or ())[:1]:
            record = box.call(ToolCall(call["function"]["name"], arguments_of(call), str(call.get("id") or "")))
            calls.append(record)
            told = str(recorded[len(calls) - 1]["content"]) if len(calls) <= len(recorded) else None
            if told is not None and told != record.result:
                differing.append({"call": len(calls), "name": record.name, "recorded": told, "result": record.result})
        if not message.get("tool_calls"):
            said.append(str(message.get("content") or ""))
    value, detail = reward(task, folder, store, said)
    published = float(row["reward"])
    notes = [detail, *(f"call {d['call']} ({d['name']}) answers otherwise than recorded" for d in differing)]
    if value != published:
        notes.append(f"the published reward is {published:g}")
    name = f"{split}/{row['task_id']}"
    turns = tuple(ModelTurn("agent", "", m) for m in row["traj"] if m["role"] == "assistant")
    trajectory = AgentTrajectory(
        name, "published", "replay", tuple(row["traj"]), turns, tuple(calls), said[-1] if said else "",
        stop_reason="done", trial=int(row.get("trial", 0)),
    )  # fmt: skip
    return {
        "task": name, "trial": trajectory.trial, "category": "retail", "level": None,
        "value": value, "right": value == 1.0, "process": None, "detail": "; ".join(filter(None, notes)),
        "published": published, "differing": differing, "answer": trajectory.answer, "stop_reason": "done",
        "calls": len(calls), "requests": len(turns), "prompt_tokens": 0, "completion_tokens": 0, "cost_usd": 0.0,
        "seconds": 0.0, "trajectory": trajectory.as_json(),
    }  # fmt: skip
