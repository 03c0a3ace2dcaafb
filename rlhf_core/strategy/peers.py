"""Where every rank of a run is, so that a wait that fails names the rank that did not come.

Each rank says every few seconds where it is; a stopped, swapped out or vanished process says nothing more. A collective
that times out knows only that somebody did not answer.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist

from rlhf_core.errors import DeadlineExceeded
from rlhf_core.runs.deadline import position

log = logging.getLogger("rlhf.ranks")
BEAT_S = 2.0
SILENT_S = 4 * BEAT_S
"""A rank that said nothing for so long has stopped, for it speaks from a thread of its own."""
WARN_S = 60.0
"""A silent rank is logged after this long, whether somebody waits for it or not."""
STORE_S = 10.0
LOST = ("timed out", "timeout", "connection", "gloo", "nccl", "socket", "peer")
"""Words of a backend's error about another rank; others (out of memory, say) are this rank's own."""


class Heard(NamedTuple):
    """The last word of another rank."""

    beat: int
    at: str
    """Step and stage."""
    seconds: float
    """How long it has been there, by its own clock, when it said so."""
    since: float
    """When this rank heard it (monotonic seconds)."""


class Peers:
    """Tells the other ranks where this one is, and remembers what they said last.

    Args:
        store: of all ranks; used by this object's thread alone.
        rank: this one.
        world_size: ranks in all.
    """

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        self.store, self.rank, self.world_size = store, rank, world_size
        began = time.monotonic()
        self.heard = {other: Heard(0, "not heard of yet", 0.0, began) for other in range(world_size) if other != rank}
        self._warned: set[int] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._exchange, name="peers", daemon=True)
        self._thread.start()

    @classmethod
    def join(cls, rank: int, world_size: int) -> Peers | None:
        """Through the launcher's store; None where there is no such store (what started the ranks is unknown)."""
        host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
        if world_size == 1 or not host or not port:
            return None
        try:
            timeout = timedelta(seconds=STORE_S)
            store = dist.TCPStore(host, int(port), is_master=False, timeout=timeout)  # pyright: ignore[reportPrivateImportUsage]
        except (RuntimeError, ValueError) as error:
            log.debug("ranks cannot tell each other where they are: %s", error)
            return None
        return cls(store, rank, world_size)

    def _exchange(self) -> None:
        beat = 0
        while not self._over.wait(BEAT_S if beat else 0.0):
            beat += 1
            at, seconds = position()
            try:
                self.store.set(f"rlhf/rank/{self.rank}", json.dumps({"beat": beat, "at": at, "seconds": seconds}))
                for other in self.heard:
                    self._listen(other)
            except RuntimeError:  # the launcher, and its store, are gone
                return

    def _listen(self, other: int) -> None:
        key = f"rlhf/rank/{other}"
        last = self.heard[other]
        if self.store.check([key]):
            said = json.loads(self.store.get(key))
            if said["beat"] != last.beat:
                self.heard[other] = Heard(said["beat"], said["at"], said["seconds"], time.monotonic())
                self._warned.discard(other)
                return
        silent_s = time.monotonic() - last.since
        if silent_s > WARN_S and other not in self._warned:
            self._warned.add(other)
            log.warning("rank %d has said nothing for %.0f s; it last said: %s", other, silent_s, last.at)

    def silent(self) -> list[int]:
        """Ranks that have stopped, by all one can tell."""
        return [r for r, heard in self.heard.items() if time.monotonic() - heard.since > SILENT_S]

    def describe(self) -> str:
        """Where every other rank is, those that have stopped first."""
        silent, now = self.silent(), time.monotonic()
        rows = [
            f"rank {r} has said nothing for {now - self.heard[r].since:.0f} s (stopped, swapped out or gone); "
            f"it last said: {self.heard[r].at}"
            for r in silent
        ]
        rows += [f"rank {r} is in {h.at}, for {h.seconds:.0f} s" for r, h in self.heard.items() if r not in silent]
        return "\n".join(rows)

    def close(self) -> None:
        """Say nothing more; idempotent."""
        self._over.set()
        self._thread.join(STORE_S)


@contextlib.contextmanager
def waiting(what: str, rank: int, peers: Peers | None, timeout_s: float) -> Iterator[None]:
    """A wait for the other ranks.

    Raises:
        DeadlineExceeded: they did not come; names those that have stopped, and where each rank is.
    """
    began = time.monotonic()
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, DeadlineExceeded) or not any(word in str(error).lower() for word in LOST):
            raise
        at, _ = position()
        silent = peers.silent() if peers is not None else []
        whom = " and ".join(f"rank {r}" for r in silent) or "the others"
        waited = f"rank {rank} waited {time.monotonic() - began:.0f} s (deadline {timeout_s:.0f} s)"
        raise DeadlineExceeded(
            f"{waited} for {whom} in {at}: {what}",
            why=f"{peers.describe()}\n{error}" if peers is not None else str(error),
            fix="look at that rank's machine and messages; strategy.timeout_s is the deadline",
        ) from error
