"""Tasks of a suite from worlds and questions."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.rollouts import ToolError
from rlhf_plugin_agents.agents.base import final_answer
from rlhf_plugin_agents.scorers import RIGHT, SCORERS, sequence_match
from rlhf_plugin_agents.suites.generated.questions import CATEGORIES, SAY_SO
from rlhf_plugin_agents.suites.generated.world import World
from rlhf_plugin_agents.suites.scripts import Script
from rlhf_plugin_agents.suites.task import AgentTask, TaskSession, Verdict
from rlhf_plugin_agents.tools.box import ToolBox
from rlhf_plugin_agents.tools.config import FilesConfig, SearchConfig
from rlhf_plugin_agents.tools.faulty import Faults, FaultyCalls
from rlhf_plugin_agents.tools.library import Search
from rlhf_plugin_agents.trajectory import AgentTrajectory

ASK_ME = "If that can be read in two ways, ask me which one I mean, and answer that."
ONE_RESULT = ("multi_step", "long_horizon", "flaky", "failure_recovery")
"""Categories whose search returns one document, so that a walk takes the calls that it is long."""


class WorldTools:
    """Search, files and calculator over one world; a search has at most ``results`` documents."""

    def __init__(self, world: World, results: int, calculator: Any) -> None:
        self.search, self.files, self.calculator = Search(world.documents, results), world.files, calculator

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        if name == "search":
            return self.search.call(**arguments)
        if name == "calculator":
            return self.calculator.call(**arguments)
        path = str(arguments["path"]).strip()
        if path in (".", "/", ""):
            return "\n".join(sorted(self.files)) or "(no files)"
        if path not in self.files:
            raise ToolError(f"there is no file '{path}'")
        return self.files[path]


def generated_tasks(
    categories: Sequence[str], count: int, seed: int, faults: Faults, ctx: BuildContext, *, asks: bool = False
) -> list[AgentTask]:
    """``count`` tasks of each category from a seed; with ``asks``, ``ambiguous`` ones have a user to be asked."""
    tool: Any = ctx.registry.config("tool", "rlhf-plugin-episodes/calculator")
    specs = [SearchConfig(results=3).spec(), FilesConfig().spec(), tool.spec()]
    calculator = tool.build(ctx)
    return [_task(c, n, seed, faults, specs, calculator, asks) for c in categories for n in range(count)]


def _task(
    category: str, number: int, seed: int, faults: Faults, specs: Sequence[Any], calculator: Any, asks: bool
) -> AgentTask:
    name = f"{category}/{number}"
    rng = random.Random(f"{seed}/{name}")
    world = World(rng)
    row = CATEGORIES[category](world, rng)
    if asks and "readings" in row:
        row = ambiguous_row(row, random.Random(f"{seed}/{name}/meant"))
    own_faults = replace(faults, seed=f"{faults.seed}/{seed}/{name}") if category == "flaky" else None
    calls = row["calls"] if own_faults is None else with_retries(row["calls"], own_faults)
    results = 1 if category in ONE_RESULT else 3

    def open_session(trial: int) -> TaskSession:
        box = ToolBox(specs, WorldTools(world, results, calculator).call)
        if own_faults is None:
            return TaskSession(box, Meant(row["meant"]) if "meant" in row else None)
        faulty = FaultyCalls(own_faults)
        return TaskSession(box.around(faulty.wrap), state=faulty)

    readable = json.dumps([world.documents, world.files], sort_keys=True)
    return AgentTask(
        name,
        category,
        ({"role": "user", "content": row["prompt"]},),
        open_session,
        lambda trajectory, room: judged(row, trajectory, room),
        {
            "oracle": Script(calls, row["answer"], question=row.get("question", "")),
            "wrong": Script(calls, row["wrong"][0]),
        },
        level=len(row["calls"]),
        judged_by=[row, hashlib.sha256(readable.encode()).hexdigest()[:16]],
    )


class Meant:
    """A user who means one reading of an ambiguous question, and says so when asked."""

    def __init__(self, label: str) -> None:
        self.label, self.was_asked = label, False

    def __call__(self, text: str) -> str | None:
        """The reading, once; None to anything else, which ends the conversation."""
        if self.was_asked or "?" not in text:
            return None
        self.was_asked = True
        return f"I mean this one: {self.label}."


def ambiguous_row(row: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """An ambiguous question of which one reading is meant; which one, the question does not tell."""
    meant, other = rng.sample(row["readings"], 2)
    labels = " or ".join(reading["label"] for reading in row["readings"])
    return {
        **row,
        "prompt": row["prompt"].replace(SAY_SO, ASK_ME),
        "answer": meant["value"],
        "wrong": [other["value"]],
        "scorer": "numeric_match",
        "meant": meant["label"],
        "question": f"Which one do you mean: {labels}?",
    }


def with_retries(calls: Sequence[Mapping[str, Any]], faults: Faults) -> list[Mapping[str, Any]]:
    """Each call as often as it must be made until it goes well."""
    made: list[Mapping[str, Any]] = []
    for call in calls:
        attempt = 0
        while faults.of(call["name"], call["arguments"], attempt):
            attempt += 1
        made += [call] * (attempt + 1)
    return made


def judged(row: Mapping[str, Any], trajectory: AgentTrajectory, room: TaskSession) -> Verdict:
    """The answer by the row's scorer; the process by the calls' order, where calls that met a fault do not count."""
    answer = trajectory.answer
    if isinstance(room.respond, Meant):
        answer = final_answer(answer)  # a conversation ends with a whole turn
        if not room.respond.was_asked:
            return Verdict(0.0, False, detail="the user was not asked which reading is meant")
    value = SCORERS[row["scorer"]](answer, row)
    made = [c.name for c in trajectory.calls]
    if isinstance(room.state, FaultyCalls):
        made = [name for name, fault in room.state.log if not fault]
    process = sequence_match(made, [c["name"] for c in row["calls"]])
    return Verdict(value, value >= RIGHT.get(row["scorer"], 1.0), process, f"wanted: {row['answer']}")
