"""The plan of a run to go on with, if the command line does not contradict it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.config.plan import Plan, reload
from rlhf_core.config.run import RunConfig
from rlhf_core.plugins.registry import Registry
from rlhf_core.runs.launch.extension import CHANGEABLE, GROUPS, PROCESSES, differences, extended, may_change
from rlhf_core.runs.launch.extension import Change as Changed
from rlhf_core.types.errors import RunDirError

if TYPE_CHECKING:
    from rlhf_core.runs.launch.started import StartedRank

Change = Callable[[Mapping[str, Any]], RunConfig]
MAX_ROWS = 8
"""Differences that are listed; the others are counted."""


def planned_resume(
    run_dir: Path, change: Change | None, registry: Registry, world_size: int | None = None
) -> tuple[Plan, RunConfig]:
    """The plan of the run to go on with, and its configuration; the registry is frozen afterwards.

    Args:
        run_dir: folder of the earlier run.
        change: maps the run's configuration to what the command line makes of it, if it says anything. It may differ
            in how long the run is, in what is done beside its steps, and in its strategy; the plan is then extended.
        registry: where the plan's components are looked up.
        world_size: number of processes that was asked for, or that a launcher started; None for the plan's own.
            With another number the plan is extended, too.

    Raises:
        RunDirError: no run there, or the configuration differs in what may not change (every difference is listed).
    """
    plan = _read_plan(run_dir)
    config = reload(registry, plan)
    changes: list[Changed] = []
    if change is not None:
        wanted = change(plan.config)
        changes = differences(config.model_dump(mode="json"), wanted.model_dump(mode="json"))
        _refuse(changes, run_dir)
        config = wanted if changes else config
    if world_size is not None and world_size != plan.world_size:
        changes.append((PROCESSES, plan.world_size, world_size))
        plan = replace(plan, world_size=world_size)
    if changes:
        plan = extended(plan, config, changes, run_dir)
    registry.freeze()
    return plan, config


def how_to_go_on(run_dir: Path, started: StartedRank | None) -> str:
    """What to do to resume a run, for messages.

    Args:
        run_dir: of the run.
        started: this rank, where another launcher started the ranks; ``rlhf train --resume`` alone would start all of
            them on one machine.

    Example:
        >>> how_to_go_on(Path("runs/grpo"), None)
        'go on with: rlhf train --resume runs/grpo'
        >>> how_to_go_on(Path("runs/grpo"), StartedRank(0, 16, 0, "srun"))  # doctest: +SKIP
        'go on: start it with the same launcher, 16 processes, adding --resume runs/grpo'
    """
    if started is None:
        return f"go on with: rlhf train --resume {run_dir}"
    return f"go on: start it with the same launcher, {started.world_size} processes, adding --resume {run_dir}"


def _read_plan(run_dir: Path) -> Plan:
    path = run_dir / "plan.json"
    if not path.is_file():
        raise RunDirError(
            f"'{run_dir}' holds no run to resume", why="plan.json is not there", fix="check --resume; rlhf runs list"
        )
    try:
        return Plan.read(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunDirError(
            f"the plan of '{run_dir}' is damaged",
            where=str(path),
            why=f"{type(error).__name__}: {error}",
            fix="start a new run",
        ) from error


def _refuse(changes: Sequence[Changed], run_dir: Path) -> None:
    rows = [f"{key}: {old!r} -> {new!r}" for key, old, new in changes if not may_change(key)]
    if not rows:
        return
    if len(rows) > MAX_ROWS:
        rows = [*rows[:MAX_ROWS], f"and {len(rows) - MAX_ROWS} more"]
    raise RunDirError(
        "the configuration differs from the run to be resumed:\n  - " + "\n  - ".join(rows),
        where=str(run_dir),
        why=f"a resumed run keeps its settings; only {', '.join((*CHANGEABLE, *GROUPS))} may change",
        fix="resume without these settings, or start a new run with another --run-dir",
    )
