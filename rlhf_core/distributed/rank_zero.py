"""Work of rank 0 alone, which may exceed a collective's deadline: the others watch the launcher's store meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator

from rlhf_core.distributed.peers import RankMonitor, lost
from rlhf_core.plugins.strategy_protocols import Collectives, RankZeroSections
from rlhf_core.types.errors import OtherRankFailed, error_text

FIRST_LOOK_S, LONGEST_PAUSE_S = 0.001, 0.25
"""Between two looks; each pause is twice the one before."""


def alone(strategy: Collectives, what: str) -> contextlib.AbstractContextManager[None]:
    """Context of what rank 0 does while the others wait; all ranks enter it, and collectives may be inside."""
    return strategy.alone(what) if isinstance(strategy, RankZeroSections) else contextlib.nullcontext()


@contextlib.contextmanager
def await_rank_zero(what: str, rank: int, peers: RankMonitor | None, timeout_s: float) -> Generator[None, None, None]:
    """:func:`alone`, over the launcher's store."""
    if peers is None:
        yield
        return
    failure = ""
    try:
        yield
    except BaseException as error:
        failure = error_text(error)
        raise
    finally:
        work = peers.leave_section()
        if rank == 0:
            peers.report_done(work, failure)
    if rank != 0 and (error := _awaited(work, what, rank, peers, timeout_s)):
        raise OtherRankFailed(f"rank 0 failed while the other ranks waited for it ({what}): {error}")


def _awaited(work: int, what: str, rank: int, peers: RankMonitor, timeout_s: float) -> str:
    """What rank 0 says at the end: its error, or nothing."""
    began = answered = time.monotonic()  # answered: when the store last did
    pause_s = FIRST_LOOK_S
    while True:
        rank_zero_ended = peers.has_ended(0)  # before the look: it may say so and end
        error = None
        try:
            error, answered = peers.done(work), time.monotonic()
        except RuntimeError as gone_store:  # or slow for a moment
            if time.monotonic() - answered > timeout_s:
                raise lost(what, rank, peers, timeout_s, began, str(gone_store)) from gone_store
        if error is not None:
            return error
        if rank_zero_ended:
            raise lost(what, rank, peers, timeout_s, began, "its process has ended", [0])
        if time.monotonic() - max(began, peers.heard[0].since) > timeout_s:
            raise lost(what, rank, peers, timeout_s, began, "it says nothing more", [0])
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
