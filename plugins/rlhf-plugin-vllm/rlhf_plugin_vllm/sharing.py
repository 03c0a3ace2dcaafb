"""Fewer servers than ranks: a rank without one asks a server of another rank, which alone gives it weights."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from rlhf_core.config import RlhfError, UserError
from rlhf_core.rollouts import EngineUnavailable
from rlhf_plugin_vllm import fleet
from rlhf_plugin_vllm.client import Refused, ServerGone
from rlhf_plugin_vllm.fleet import Fleet
from rlhf_plugin_vllm.replica import Replica
from rlhf_plugin_vllm.weight_files import Published

LOOK_S = 0.25
"""Between two exchanges of ranks while one of them is at work: none of them may take as long as a version does."""
COMING_BACK_S = 60.0
"""How long, for each retry, a server that answers is given by the rank that brings it back."""


class RankVersion(NamedTuple):
    """What a rank says when its servers have a version."""

    published: Published | None
    """The version; None of a rank without servers."""
    serving: tuple[str, ...]
    """Addresses of its servers that have it."""
    error: tuple[str, str, str, str, int, bool] | None = None
    """What, where, why, fix and exit code of what was raised, and whether no server is left."""


def borrows(urls: Sequence[str], rank: int) -> bool:
    """Whether a rank has no server by address of its own."""
    return 0 < len(urls) <= rank


def in_preference(urls: Sequence[str], rank: int) -> list[str]:
    """The servers that a rank without one may ask, the first first."""
    first = rank % len(urls)
    return [*urls[first:], *urls[:first]]


def on_all_ranks(comm: Any, work: Callable[[], None] | None, version: Callable[[], RankVersion]) -> list[RankVersion]:
    """Give ranks' servers a version once none is asked with the one before; all ranks call it, and know which have
    it."""
    raised: list[BaseException] = []

    def guarded() -> None:
        try:
            work() if work is not None else None
        except BaseException as error:
            raised.append(error)

    comm.gather_objects(None)
    thread = threading.Thread(target=guarded, name="vllm-publish", daemon=True)
    thread.start()
    while not all(comm.gather_objects(not thread.is_alive())):
        thread.join(LOOK_S) if thread.is_alive() else time.sleep(LOOK_S)
    rows = comm.gather_objects(RankVersion(None, (), _said(raised[0])) if raised else version())
    if raised:
        raise raised[0]
    for rank, row in enumerate(rows):
        if row.error is not None:
            raise _of_other_rank(rank, row.error)
    return rows


def _said(error: BaseException) -> tuple[str, str, str, str, int, bool]:
    if not isinstance(error, RlhfError):
        return str(error) or type(error).__name__, "", "", "", 1, False
    return error.what, error.where, error.why, error.fix, error.exit_code, isinstance(error, EngineUnavailable)


def _of_other_rank(rank: int, said: tuple[str, str, str, str, int, bool]) -> RlhfError:
    what, where, why, fix, code, unavailable = said
    kind = EngineUnavailable if unavailable else UserError if code == UserError.exit_code else RlhfError
    return kind(f"rank {rank}: {what}", where=where, why=why, fix=fix)


class BorrowedFleet(Fleet):
    """Servers of other ranks, one of which is asked: the first in order of preference that has the version."""

    def follow(self, published: Published, serving: Collection[str]) -> None:
        """Ask those that have a version, as their ranks say."""
        self._newest = published
        for replica in self.replicas:
            if replica.url not in serving:
                replica.take_out("the rank that gives it weights has taken it out")
            elif replica.out:
                replica.put_back()

    def _until_one_lives(self) -> list[Replica]:
        """The one to ask; while none serves it is waited for, as the rank that it belongs to may bring it back."""
        while not self.live:
            if self.retries_left <= 0 or self._newest is None:
                raise self._none_left()
            self.retries_left -= 1
            self._wait_for_one(self._newest)
        return self.live[:1]

    def _wait_for_one(self, published: Published) -> None:
        """One retry: longer where a server answers, which then is about to get the version."""
        time.sleep(fleet.RETRY_S)
        ends = time.monotonic() + COMING_BACK_S
        while answering := [replica for replica in self.replicas if self._answers(replica)]:
            for replica in answering:
                replica.put_back()
                try:
                    self.check(replica, published)
                except (ServerGone, Refused) as error:
                    replica.take_out(str(error))
                    continue
                self.counts["brought_back"] += 1
                return
            if time.monotonic() > ends:
                return
            time.sleep(fleet.RETRY_S)

    def _answers(self, replica: Replica) -> bool:
        replica.client.reopen()
        try:
            replica.client.get("/is_paused", seconds=fleet.RETRY_S + 5.0)
        except (ServerGone, Refused):
            return False
        return True
