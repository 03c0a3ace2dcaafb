"""Tasks of tau-bench's retail domain, from its files: database, functions, policy, users with their gold actions."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rlhf_core.api import DatasetError
from rlhf_core.sdk import json_values
from rlhf_plugin_agents.agents.base import final_answer
from rlhf_plugin_agents.agents.react import OBSERVATION, written_calls
from rlhf_plugin_agents.scorers import sequence_match
from rlhf_plugin_agents.suites.retail import FUNCTIONS, RetailStore
from rlhf_plugin_agents.suites.scripts import Script
from rlhf_plugin_agents.suites.task import AgentTask, Room, Verdict
from rlhf_plugin_agents.tools.box import ToolBox
from rlhf_plugin_agents.trajectory import AgentTrajectory

TABLES = ("users", "orders", "products")
YES = "Yes, please go ahead."
USER_TURNS = 6
"""The scripted user says yes so often, and leaves then."""


@cache
def read(folder: Path, name: str) -> Any:
    """A file of the domain, ``.gz`` or not.

    Raises:
        DatasetError: it is missing or no JSON.
    """
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            data = path.read_bytes()
            text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
            try:
                return text if name.endswith(".md") else json.loads(text)
            except ValueError as error:
                raise DatasetError(f"'{path}' is no JSON: {error}") from error
    raise DatasetError(
        f"suite 'tau_bench': there is no '{name}' in '{folder}'",
        fix="--data FOLDER with retail_db_users.json, retail_db_orders.json, retail_db_products.json, "
        "retail_tools.json, retail_wiki.md and retail_tasks_test.json (.gz too)",
    )


def database(folder: Path) -> dict[str, Any]:
    """Every table; shared, so copy it before anything is changed."""
    return {table: read(folder, f"retail_db_{table}.json") for table in TABLES}


@cache
def given_digest(folder: Path) -> str:
    """Digest of the database and of what is offered, as the files have them."""
    given = [database(folder), read(folder, "retail_tools.json")]
    return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()


def load(folder: Path, split: str) -> list[AgentTask]:
    """The tasks of a split.

    Raises:
        DatasetError: a file is missing, or offers a function that is not known here.
    """
    specs = read(folder, "retail_tools.json")
    unknown = [s["function"]["name"] for s in specs if s["function"]["name"] not in FUNCTIONS]
    if unknown:
        raise DatasetError(f"there is no function '{unknown[0]}' here", where=f"{folder}, retail_tools.json")
    rows = read(folder, f"retail_tasks_{split}.json")
    return [task_of(row, n, folder, specs, split) for n, row in enumerate(rows)]


def task_of(row: Mapping[str, Any], number: int, folder: Path, specs: Sequence[Any], split: str) -> AgentTask:
    """A row as a task; every play has a database of its own."""
    gold = [{"name": a["name"], "arguments": a["kwargs"]} for a in row["actions"]]
    said = "Done: " + ", ".join(row["outputs"]) if row["outputs"] else "That is done."

    def open_room(seed: int) -> Room:
        store = RetailStore(database(folder))
        return Room(ToolBox(specs, store.call, strict=False), scripted_user(), store)

    return AgentTask(
        f"{split}/{number}",
        "retail",
        ({"role": "user", "content": row["instruction"]},),
        open_room,
        lambda trajectory, room: judged(row, folder, trajectory, room.state),
        {"oracle": Script(gold, said, plain=True), "wrong": Script(_other(row), "I did something else.", plain=True)},
        system=read(folder, "retail_wiki.md"),
        judged_by=[row["actions"], row["outputs"], given_digest(folder)],
    )


def _other(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A change that no task wants."""
    address = {"address1": "1 Nowhere Road", "address2": "", "city": "Nowhere", "state": "TX", "country": "USA"}
    return [{"name": "modify_user_address", "arguments": {"user_id": row["user_id"], **address, "zip": "00000"}}]


def scripted_user() -> Any:
    """A user who says yes to every question, and leaves when there is none."""
    turns = iter(range(USER_TURNS))

    def respond(text: str) -> str | None:
        return YES if "?" in text and next(turns, None) is not None else None

    return respond


def reward(row: Mapping[str, Any], folder: Path, store: RetailStore, said: Sequence[str]) -> tuple[float, str]:
    """tau-bench's reward: 1 if the database is what the gold actions make of it and every output was said, else 0.

    Args:
        row: the task.
        folder: of the domain's files.
        store: after the play.
        said: all that the agent told the user.
    """
    if store.digest != gold_digest(folder, json.dumps(row["actions"])):
        return 0.0, "the database differs from what the gold actions make of it"
    texts = [text.lower().replace(",", "") for text in said]
    missing = [o for o in row["outputs"] if not any(o.lower() in text for text in texts)]
    return (0.0, f"never said: {', '.join(missing)}") if missing else (1.0, "")


@cache
def gold_digest(folder: Path, actions: str) -> str:
    """Digest of the database after the gold actions."""
    store = RetailStore(database(folder))
    for action in json.loads(actions):
        store.call(action["name"], action["kwargs"])
    return store.digest


def judged(row: Mapping[str, Any], folder: Path, trajectory: AgentTrajectory, store: RetailStore) -> Verdict:
    """Database and outputs; the process is compared with the gold actions."""
    value, detail = reward(row, folder, store, told(trajectory))
    process = sequence_match([c.name for c in trajectory.calls], [a["name"] for a in row["actions"]])
    return Verdict(value, value == 1.0, process, detail)


def told(trajectory: AgentTrajectory) -> list[str]:
    """What the user read: turns of the part that answers, without those that call, and without written thoughts."""
    said: list[str] = []
    for turn in trajectory.turns:
        text = str(turn.message.get("content") or "").split(OBSERVATION)[0]
        calls = turn.message.get("tool_calls") or turn.errors or written_calls(text)
        if turn.role in ("agent", "synthesizer") and not calls:
            said.append(final_answer(text))
    return said


def arguments_of(call: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a call of OpenAI's form, written as text or not."""
    arguments = call["function"]["arguments"]
    return json.loads(arguments) if isinstance(arguments, str) else json_values(arguments)
