"""`rlhf train` on every rank but the first, where torchrun, ``accelerate launch`` or ``srun`` started it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.types.errors import RlhfError

if TYPE_CHECKING:
    from rlhf_core.runs.launch.ranks import RankInfo

Options = tuple[tuple[str, ...], tuple[str, ...], dict[str, Any]]


def train_rank(
    rank: RankInfo,
    options: Options | None,
    run_dir: Path | None,
    resume: Path | None,
    *,
    no_plugins: bool,
    strict: bool,
) -> None:
    """Take rank 0's plan and run it. Nothing is shown but errors."""
    from rlhf_core.cli.common import quiet_libraries
    from rlhf_core.cli.options import open_plugins, resolve_here
    from rlhf_core.runs.launch.joined import end_quietly, take_plan
    from rlhf_core.runs.launch.process import run_plan
    from rlhf_core.runs.launch.process_end import sigterm_as_interrupt
    from rlhf_core.runs.launch.run import preflight

    quiet_libraries()
    registry, hooks = open_plugins(enabled=not no_plugins, strict=strict, reports=False)
    try:
        own_config = partial(resolve_here, registry, *options) if options and resume is None else None
        resumes, check = resume is not None, partial(preflight, registry)
        taken = take_plan(rank, registry, check, resume or run_dir, own_config, resume=resumes)
        if taken is not None:
            plan, config, folder = taken
            with sigterm_as_interrupt():
                run_plan(plan, config, registry, hooks, folder, resume=resumes, started=rank)
    except RlhfError as error:
        end_quietly(error, rank)
        raise
