"""Tasks of tau-bench, retail and airline, from its files: users with their gold actions, and what judges a play."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rlhf_core.data import DatasetError, json_values
from rlhf_plugin_agents.agents.base import final_answer
from rlhf_plugin_agents.agents.react import OBSERVATION, written_calls
from rlhf_plugin_agents.scorers import sequence_match
from rlhf_plugin_agents.suites.scripts import Script
from rlhf_plugin_agents.suites.task import AgentTask, TaskSession, Verdict
from rlhf_plugin_agents.suites.tau_files import STORES, domain_digest, open_store, read
from rlhf_plugin_agents.suites.tau_store import TRANSFER, Store
from rlhf_plugin_agents.suites.tau_user import ModelUser, ModelUsers
from rlhf_plugin_agents.tools.box import TaskDone, ToolBox
from rlhf_plugin_agents.trajectory import AgentTrajectory

YES = "Yes, please go ahead."
USER_TURNS = 6
"""The scripted user says yes so often, and leaves then."""


def load(folder: Path, split: str, domain: str = "retail", users: ModelUsers | None = None) -> list[AgentTask]:
    """The tasks of a split (airline has ``test`` alone); without ``users`` a scripted user speaks."""
    specs, functions = read(folder, f"{domain}_tools.json"), STORES[domain].functions
    unknown = [s["function"]["name"] for s in specs if s["function"]["name"] not in functions]
    if unknown:
        raise DatasetError(f"there is no function '{unknown[0]}' here", where=f"{folder}, {domain}_tools.json")
    rows = read(folder, f"{domain}_tasks_{split}.json")
    return [task_of(row, n, folder, specs, split, domain, users) for n, row in enumerate(rows)]


def task_of(
    row: Mapping[str, Any],
    number: int,
    folder: Path,
    specs: Sequence[Any],
    split: str,
    domain: str = "retail",
    users: ModelUsers | None = None,
) -> AgentTask:
    """A row as a task; every play has a database of its own."""
    gold = [{"name": a["name"], "arguments": a["kwargs"]} for a in row["actions"]]
    final_text = "Done: " + ", ".join(row["outputs"]) if row["outputs"] else "That is done."
    name = f"{split}/{number}"

    def open_session(seed: int) -> TaskSession:
        store = open_store(folder, domain)
        box = ToolBox(specs, ending(store), strict=False)
        if users is None:
            return TaskSession(box, scripted_user(), store)
        user = ModelUser(users, row["instruction"], name, seed)
        return TaskSession(box, user, store, user.first)

    judged_by = [row["actions"], row["outputs"], domain_digest(folder, domain)]
    return AgentTask(
        name,
        domain,
        ({"role": "user", "content": row["instruction"]},),
        open_session,
        lambda trajectory, room: judged(row, folder, trajectory, room.state),
        {
            "oracle": Script(gold, final_text, plain=True),
            "wrong": Script(_other(row, domain), "I did something else.", plain=True),
        },
        system=read(folder, f"{domain}_wiki.md"),
        judged_by=judged_by,
    )


def ending(store: Store) -> Any:
    """What answers calls; after a transfer to a human the conversation is over, as in the published environment."""

    def answer(name: str, arguments: Mapping[str, Any]) -> str:
        result = store.call(name, arguments)
        if name == TRANSFER and not result.startswith("Error"):
            raise TaskDone(result)
        return result

    return answer


def _other(row: Mapping[str, Any], domain: str) -> list[dict[str, Any]]:
    if domain == "airline":
        return [{"name": "send_certificate", "arguments": {"user_id": row["user_id"], "amount": 1}}]
    address = {"address1": "1 Nowhere Road", "address2": "", "city": "Nowhere", "state": "TX", "country": "USA"}
    return [{"name": "modify_user_address", "arguments": {"user_id": row["user_id"], **address, "zip": "00000"}}]


def scripted_user() -> Any:
    """A user who says yes to every question, and leaves when there is none."""
    turns = iter(range(USER_TURNS))

    def respond(text: str) -> str | None:
        return YES if "?" in text and next(turns, None) is not None else None

    return respond


def reward(row: Mapping[str, Any], folder: Path, store: Store, said: Sequence[str]) -> tuple[float, str]:
    """tau-bench's reward: 1 if the database is as after the gold actions and every output was ``said``, else 0."""
    if store.digest != gold_digest(folder, json.dumps(row["actions"]), store.domain):
        return 0.0, "the database differs from what the gold actions make of it"
    texts = [text.lower().replace(",", "") for text in said]
    missing = [o for o in row["outputs"] if not any(o.lower() in text for text in texts)]
    return (0.0, f"never said: {', '.join(missing)}") if missing else (1.0, "")


@cache
def gold_digest(folder: Path, actions: str, domain: str = "retail") -> str:
    store = open_store(folder, domain)
    for action in json.loads(actions):
        store.call(action["name"], action["kwargs"])
    return store.digest


def judged(row: Mapping[str, Any], folder: Path, trajectory: AgentTrajectory, store: Store) -> Verdict:
    """Database and outputs; the process is compared with the gold actions."""
    value, detail = reward(row, folder, store, said_to_user(trajectory))
    process = sequence_match([c.name for c in trajectory.calls], [a["name"] for a in row["actions"]])
    return Verdict(value, value == 1.0, process, detail)


def said_to_user(trajectory: AgentTrajectory) -> list[str]:
    """What the user read: turns of the part that answers, without those that call, and without written thoughts."""
    replies: list[str] = []
    for turn in trajectory.turns:
        text = str(turn.message.get("content") or "").split(OBSERVATION)[0]
        calls = turn.message.get("tool_calls") or turn.errors or written_calls(text)
        if turn.role in ("agent", "synthesizer") and not calls:
            replies.append(final_answer(text))
    return replies


def arguments_of(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    return json.loads(arguments) if isinstance(arguments, str) else json_values(arguments)
