"""Plays the tasks of a suite with one agent on one backend, into a folder, and goes on after a kill."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.data import Prompt, json_values, write_json
from rlhf_core.rollouts import request_seed
from rlhf_plugin_agents.agents.base import Agent
from rlhf_plugin_agents.agents.config import AgentConfig
from rlhf_plugin_agents.backends.base import Backend, BackendFault
from rlhf_plugin_agents.backends.config import BackendConfig, check_form
from rlhf_plugin_agents.backends.lockstep import LockStep
from rlhf_plugin_agents.folder import AgentFolder
from rlhf_plugin_agents.page import write_page
from rlhf_plugin_agents.report import report
from rlhf_plugin_agents.suites.config import AgentSuiteConfig
from rlhf_plugin_agents.suites.task import AgentTask
from rlhf_plugin_agents.trajectory import AgentTrajectory

Say = Callable[[str], None]
WORKERS = 4
ENDED = ("answer", "done")
"""How a play ends that was not cut off."""


@dataclass(frozen=True)
class Job:
    suite: AgentSuiteConfig
    agent: AgentConfig
    backend: BackendConfig
    seed: int = 0

    def settings(self, tasks: Sequence[AgentTask]) -> dict[str, Any]:
        rows = [[t.id, t.system, [dict(m) for m in t.messages], t.judged_by] for t in tasks]
        tasks_json = json.dumps(json_values(rows), sort_keys=True)
        return {
            "suite": self.suite.facts(),
            "tasks": {"count": len(tasks), "hash": hashlib.sha256(tasks_json.encode()).hexdigest()[:16]},
            "agent": self.agent.model_dump(mode="json"),
            "backend": self.backend.facts(),
            "seed": self.seed,
        }


@dataclass(frozen=True)
class Prepared:
    """A job with its tasks and its folder, and what has no verdict there yet."""

    job: Job
    tasks: Sequence[AgentTask]
    folder: AgentFolder
    todo: Sequence[tuple[AgentTask, int]]


def prepare(job: Job, ctx: BuildContext, out: Path | None = None) -> Prepared:
    """Read the tasks and the rows so far; nothing is written."""
    tasks = job.suite.tasks(ctx)
    folder = AgentFolder(out, job.settings(tasks))
    folder.check()
    done = folder.judged()
    todo = [(t, trial) for t in tasks for trial in range(job.suite.trials) if (t.id, trial) not in done]
    return Prepared(job, tasks, folder, todo)


def evaluate(
    job: Job, ctx: BuildContext, out: Path | None = None, workers: int | None = 1, say: Say = lambda text: None
) -> tuple[Path, dict[str, Any]]:
    """Play what has no verdict yet; return the folder and its report. ``workers`` None is what suits the backend."""
    return carry_out(prepare(job, ctx, out), ctx, workers, say)


def carry_out(prepared: Prepared, ctx: BuildContext, workers: int | None, say: Say) -> tuple[Path, dict[str, Any]]:
    job, tasks, folder = prepared.job, prepared.tasks, prepared.folder
    if prepared.todo:
        backend = job.backend.make(tasks, ctx)
        try:
            check_form(backend, job.agent.calls, job.agent.name)
            _play(job, prepared.todo, backend, folder, workers or getattr(backend, "workers", WORKERS), say)
        finally:
            backend.close()
    order = {t.id: n for n, t in enumerate(tasks)}
    rows = sorted(folder.rows(), key=lambda r: (order[r["task"]], r["trial"]))
    result = report(rows, job.suite.trials)
    write_json(folder.path / "report.json", result)
    write_page(folder.path, folder.settings, result, rows)
    return folder.path, result


def _play(
    job: Job, todo: Sequence[tuple[AgentTask, int]], backend: Backend, folder: AgentFolder, workers: int, say: Say
) -> None:
    began, reported = time.monotonic(), 0.0
    plays: LockStep[Any, Any] | None = getattr(backend, "plays", None)

    def play(task: AgentTask, trial: int) -> dict[str, Any]:
        try:
            return play_one(job.agent, backend, task, job.seed, trial)
        finally:
            if plays is not None:
                plays.end()

    with folder.writing() as append, ThreadPoolExecutor(workers) as pool:
        done = folder.judged()  # another process may have played since
        todo = [(task, trial) for task, trial in todo if (task.id, trial) not in done]
        if plays is not None:
            plays.begin(len(todo), workers)
        futures: list[Future[dict[str, Any]]] = [pool.submit(play, task, trial) for task, trial in todo]
        try:
            for count, future in enumerate(as_completed(futures), start=1):
                append(future.result())
                if time.monotonic() - reported > 5 or count == len(futures):
                    reported = time.monotonic()
                    say(f"{count} of {len(futures)} tasks, {reported - began:.0f} s")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for part in (plays, backend, job.suite):
                getattr(part, "interrupt", lambda: None)()  # plays under way end with their next request
            print(f"interrupted; the same command goes on with {folder.path}", file=sys.stderr)
            raise


def play_one(config: AgentConfig, backend: Backend, task: AgentTask, seed: int, trial: int) -> dict[str, Any]:
    room = task.open(request_seed(seed, "agents", task.id, trial))
    agent: Agent = config.make(backend)
    try:
        messages = task.messages if room.first is None else ({"role": "user", "content": room.first()},)
        # Scripts and recordings are found by the prompt's id, the trials of a model differ by their seed.
        trajectory = agent.run(
            Prompt(task.id, tuple(messages)), room.box, seed=request_seed(seed, task.id, trial),
            trial=trial, system=task.system, respond=room.respond,
        )  # fmt: skip
    except BackendFault as fault:  # of the user: what agents ask for themselves is caught in `run`
        trajectory = AgentTrajectory(
            task.id, config.name, backend.name, (), (), (), "", "backend_error", str(fault), trial=trial
        )
    user: Mapping[str, Any] = getattr(room.respond, "facts", dict[str, Any])()
    row: dict[str, Any] = {"task": task.id, "trial": trial, "category": task.category, "level": task.level}
    if trajectory.stop_reason == "backend_error":
        row |= {"value": None, "right": None, "process": None, "detail": trajectory.error}
    else:
        verdict = task.judge(trajectory, room)
        row |= {k: getattr(verdict, k) for k in ("value", "right", "process", "detail")}
        if trajectory.stop_reason not in ENDED:  # doing nothing is right in some tasks, not getting that far is not
            row |= {"value": 0.0, "right": False, "detail": verdict.detail or f"stopped: {trajectory.stop_reason}"}
    row |= {"answer": trajectory.answer, "stop_reason": trajectory.stop_reason}
    row |= {"calls": len(trajectory.calls), "requests": len(trajectory.turns)}
    return {
        **row,
        "prompt_tokens": trajectory.prompt_tokens,
        "completion_tokens": trajectory.completion_tokens,
        "cost_usd": trajectory.cost_usd + user.get("cost_usd", 0.0),
        "seconds": trajectory.seconds,
        "trajectory": trajectory.as_json(),
        **({"user": json_values(user)} if user else {}),
    }
