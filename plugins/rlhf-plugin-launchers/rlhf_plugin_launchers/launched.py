"""This process as one rank of a launch: what ``rlhf train`` asks of it (``rlhf_core.runs.launch.launched``)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_core.config import Registry, RlhfError, UserError
from rlhf_plugin_launchers.rank import RankInfo, end_with_launcher, started_rank

if TYPE_CHECKING:
    from rlhf_core.config.plan import Plan
    from rlhf_core.config.run import RunConfig
    from rlhf_plugin_launchers.joined import Rank0


class LaunchedRank:
    """One of several processes that another launcher started."""

    def __init__(self, me: RankInfo) -> None:
        self.me, self.rank, self.world_size = me, me.rank, me.world_size
        self.resume_hint = me.resume_hint

    def lead(self) -> AbstractContextManager[Rank0]:
        """Rank 0's side; the others hear how the block ends."""
        from rlhf_plugin_launchers.joined import Rank0

        return Rank0(self.me).leading()

    def take_plan(
        self,
        registry: Registry,
        preflight: Callable[[RunConfig, int], None],
        run_dir: Path | None,
        wanted: Callable[[], RunConfig] | None,
        *,
        resume: bool,
    ) -> tuple[Plan, RunConfig, Path] | None:
        """Another rank's side: see :func:`rlhf_plugin_launchers.joined.take_plan`."""
        from rlhf_plugin_launchers.joined import take_plan

        return take_plan(self.me, registry, preflight, run_dir, wanted, resume=resume)

    def end_quietly(self, error: RlhfError) -> None:
        """End without a message that another rank prints in the same terminal; else return."""
        from rlhf_plugin_launchers.joined import end_quietly

        end_quietly(error, self.me)


def launched_rank(nproc: int | None) -> LaunchedRank | None:
    """This process among those that a launcher started, None where it is the only one; it ends with torchrun.

    Args:
        nproc: what ``--nproc`` says.

    Raises:
        UserError: the environment contradicts itself, or ``--nproc``.
    """
    me = started_rank()
    if me is None:
        return None
    end_with_launcher(me)
    if nproc not in (None, me.world_size):
        raise UserError(
            f"--nproc {nproc}, but {me.launcher} started {me.world_size} processes",
            fix="leave --nproc out: it starts processes without a launcher",
        )
    return LaunchedRank(me)
