"""A process that another launcher started as one rank of several: an installed plugin joins them to one run."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rlhf_core.plugins.entry_points import disabled_distributions, entries_of, load_entry
from rlhf_core.types.errors import PluginError, RlhfError, UserError

if TYPE_CHECKING:
    from rlhf_core.config.plan import Plan
    from rlhf_core.config.run import RunConfig
    from rlhf_core.plugins.registry import Registry
    from rlhf_core.runs.run_dir import RunDir

log = logging.getLogger("rlhf.plugins")
COUNTS = ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
"""Variables in which torchrun and srun say how many processes they start."""


class RankZeroLauncher(Protocol):
    """Rank 0, which plans the run."""

    def agree(self, plan: Plan, config: RunConfig, run: RunDir, *, resume: bool) -> None:
        """Give the plan to the other ranks, and wait until every one has said that it can run it."""
        ...

    def resume_hint(self, run_dir: Path) -> str:
        """What to do to go on with the run, for messages."""
        ...


class LaunchedRank(Protocol):
    """What a plugin's entry point ``rlhf.launcher``, called with ``--nproc``, returns."""

    rank: int
    world_size: int

    def lead(self) -> AbstractContextManager[RankZeroLauncher]:
        """Rank 0's side; the others hear how the block ends."""
        ...

    def take_plan(
        self,
        registry: Registry,
        preflight: Callable[[RunConfig, int], object],
        run_dir: Path | None,
        wanted: Callable[[], RunConfig] | None,
        *,
        resume: bool,
    ) -> tuple[Plan, RunConfig, Path] | None:
        """Another rank's side: rank 0's plan, its configuration and the run's folder; None where there is no run."""
        ...

    def resume_hint(self, run_dir: Path) -> str:
        """What to do to go on with the run, for messages."""
        ...

    def end_quietly(self, error: RlhfError) -> None:
        """End without a message that another rank prints in the same terminal; else return."""
        ...


def launched_rank(nproc: int | None) -> LaunchedRank | None:
    """This process among those that a launcher started; None where it is the only one."""
    ranks: dict[str, LaunchedRank] = {}
    for entry in entries_of("rlhf.launcher", disabled_distributions()):
        try:
            join = load_entry(entry, f"launcher '{entry.name}'", "reinstall it, or disable it")
        except PluginError as problem:
            log.warning("%s", problem)
            continue
        if rank := join(nproc):
            ranks[entry.qualified] = rank
    if len(ranks) > 1:
        raise UserError(f"{' and '.join(ranks)} both join ranks", fix="rlhf plugins disable all but one of them")
    count = next((os.environ[name] for name in COUNTS if os.environ.get(name, "1") != "1"), None)
    if count is not None and not ranks:
        raise UserError(
            f"a launcher started {count} processes, and nothing joins them to one run",
            why="rlhf-plugin-launchers is not installed, is disabled or cannot be loaded",
            fix="pip install rlhf-plugin-launchers, or enable it, or start them with rlhf train --nproc",
        )
    if not ranks and nproc is None and (tasks := os.environ.get("SLURM_NTASKS", "1")) != "1":
        log.warning("Slurm gives this job %s tasks, and this process trains alone: start it with srun", tasks)
    return next(iter(ranks.values()), None)
