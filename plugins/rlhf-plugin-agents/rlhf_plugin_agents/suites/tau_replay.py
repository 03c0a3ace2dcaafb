"""Trajectories in the form that tau-bench publishes, played again: are results and rewards the same?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.config import UserError
from rlhf_core.data import DatasetError
from rlhf_plugin_agents.suites.tau import arguments_of, reward
from rlhf_plugin_agents.suites.tau_files import STORES, domain_in, open_store, read
from rlhf_plugin_agents.suites.tau_store import Store
from rlhf_plugin_agents.trajectory import AgentTrajectory, CallRecord, ModelTurn

NEEDED = ("task_id", "reward", "traj")


def is_published(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(200).lstrip().startswith(b"[")


def replayed(path: Path, folder: Path, split: str, domain: str | None = None) -> list[dict[str, Any]]:
    """A row per trajectory with ``published`` (its reward) and ``differing`` (results); ``domain`` None detects it."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DatasetError(f"'{path}' is not JSON: {error}") from error
    if not rows:
        raise DatasetError(f"'{path}' holds no trajectory")
    domain = domain_in(folder, domain)
    tasks = read(folder, f"{domain}_tasks_{split}.json")
    for number, row in enumerate(rows):
        missing = [k for k in NEEDED if not isinstance(row, Mapping) or k not in row]
        if missing:
            raise DatasetError(f"a trajectory has no {missing[0]}", where=f"{path}, number {number}")
        if not isinstance(row["task_id"], int) or not 0 <= row["task_id"] < len(tasks):
            raise DatasetError(
                f"there is no task {row['task_id']}",
                where=f"{path}, number {number}",
                fix="--set split=train, dev or test; --set domain=retail or airline",
            )
    replayed_rows: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        try:
            replayed_rows.append(_one(row, tasks[row["task_id"]], folder, split, domain))
        except UserError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DatasetError(
                "a trajectory has not the published form", where=f"{path}, number {number}", why=repr(error)
            ) from error
    return replayed_rows


def _one(row: Mapping[str, Any], task: Mapping[str, Any], folder: Path, split: str, domain: str) -> dict[str, Any]:
    store = open_store(folder, domain)
    calls: list[CallRecord] = []
    replies: list[str] = []
    differing: list[dict[str, Any]] = []
    for message, recorded in _turns(row["traj"]):
        # tau-bench makes the first call of a turn, and leaves the others out.
        for call in (message.get("tool_calls") or ())[:1]:
            record = _replayed_call(call, store)
            calls.append(record)
            if recorded is not None and recorded != record.result:
                differing.append({"call": len(calls), "name": record.name, "arguments": record.arguments,
                                  "recorded": recorded, "result": record.result})  # fmt: skip
        if not message.get("tool_calls"):
            replies.append(str(message.get("content") or ""))
    for name in (c.name for c in calls if c.name not in store.functions):
        if other := next((d for d, s in STORES.items() if name in s.functions), ""):
            raise DatasetError(f"'{name}' is a function of {other}, not of {domain}", fix=f"--set domain={other}")
    value, detail = reward(task, folder, store, replies)
    if _cut_off(row):
        value, detail = 0.0, "the conversation did not end, and only one that does is judged"
    published = float(row["reward"])
    notes = [detail, *(f"call {d['call']} ({d['name']}) answers otherwise than recorded" for d in differing)]
    if value != published:
        notes.append(f"the published reward is {published:g}")
    if other := _other_task(row, task):
        notes.append(f"it was recorded with other {other} of the task")
    name = f"{split}/{row['task_id']}"
    turns = tuple(ModelTurn("agent", "", m) for m in row["traj"] if m["role"] == "assistant")
    trajectory = AgentTrajectory(
        name, "published", "replay", tuple(row["traj"]), turns, tuple(calls), replies[-1] if replies else "",
        stop_reason="done", trial=int(row.get("trial", 0)),
    )  # fmt: skip
    return {
        "task": name, "trial": trajectory.trial, "category": domain, "level": None,
        "value": value, "right": value == 1.0, "process": None, "detail": "; ".join(filter(None, notes)),
        "published": published, "differing": differing, "other_task": other,
        "answer": trajectory.answer, "stop_reason": "done",
        "calls": len(calls), "requests": len(turns), "prompt_tokens": 0, "completion_tokens": 0, "cost_usd": 0.0,
        "seconds": 0.0, "trajectory": trajectory.as_json(),
    }  # fmt: skip


def _cut_off(row: Mapping[str, Any]) -> bool:
    """Whether the recording says that it was never judged: the conversation had not ended at its limit of turns."""
    info = row.get("info") or {}
    return "reward_info" in info and info["reward_info"] is None


def _turns(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], str | None]]:
    """Turns of the agent, each with the result that follows it; None where the recording ends before it."""
    for message, after in zip(messages, [*messages[1:], {}]):
        if message["role"] == "assistant":
            yield message, str(after["content"]) if after.get("role") == "tool" else None


def _replayed_call(call: Mapping[str, Any], store: Store) -> CallRecord:
    """The call made again, its result whole and as the published environment writes it."""
    name = str(call["function"]["name"])
    try:
        arguments = arguments_of(call)
    except ValueError as error:
        return CallRecord(name, {}, f"Error: the arguments are not JSON: {error}", "error", str(call.get("id") or ""))
    result = store.call(name, arguments)
    failed = result.startswith(("Error:", "Unknown action"))
    return CallRecord(name, arguments, result, "error" if failed else "ok", str(call.get("id") or ""))


def _other_task(row: Mapping[str, Any], task: Mapping[str, Any]) -> str:
    """What of the task was different when the recording was made, of what decides the reward."""
    then = (row.get("info") or {}).get("task") or {}
    return " and ".join(k for k in ("actions", "outputs") if k in then and then[k] != task[k])
