"""Where every rank of a run is, so that a wait that fails names the rank that did not come, and every rank's stack."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import sys
import threading
import time
import traceback
from collections.abc import Generator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

from rlhf_core.plugins.component_calls import position
from rlhf_core.types.errors import DeadlineExceeded

log = logging.getLogger("rlhf.ranks")
BEAT_S = 2.0
SILENT_S = 4 * BEAT_S
"""A rank that has sent no heartbeat for this long has stopped: heartbeats come from a separate thread."""
WARN_S = 60.0
"""A silent rank is logged after this long, whether somebody waits for it or not."""
STORE_S = 10.0
MOST_FAILURES = 5
"""Of the store in a row, after which this rank says nothing more: the launcher has ended."""
STACKS_S = 3 * BEAT_S
"""A rank that is asked for its stack and still speaks has answered after this long."""
ATTEMPT = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
"""Of the launcher's: the store may hold what ranks of an earlier one said."""
ASKED, FRAMES, THREADS = f"rlhf/stacks/{ATTEMPT}", 12, 4
"""Key under which stacks are asked for; how many frames and threads are shown."""
EARLY_S, LAST_S = STACKS_S + 2 * BEAT_S, 2 * BEAT_S
"""Before its deadline a wait that nobody may survive asks for stacks, and says what it knows."""
NAME = "peers"
"""Of the thread that speaks and listens."""
LOST = ("timed out", "timeout", "connection", "gloo", "nccl", "socket", "peer")
"""Words of a backend's error about another rank; others (out of memory, say) are this rank's own."""


class Heartbeat(NamedTuple):
    """The last word of another rank."""

    beat: int
    at: str
    """Step and stage."""
    seconds: float
    """How long it has been there, by its own clock, when it said so."""
    since: float
    """When this rank heard it (monotonic seconds)."""
    process: str = ""
    """:func:`this_process` of that rank; empty if it is not known."""


class Wait(NamedTuple):
    """A wait for the other ranks."""

    what: str
    began: float
    timeout_s: float


class RankMonitor:
    """Tells the other ranks where this one is, and remembers what they said last."""

    joined = 0

    def __init__(self, store: Any, rank: int, world_size: int, number: int = 0) -> None:
        self.store, self.rank, self.world_size = store, rank, world_size
        self._sections, self._alone = 0, f"rlhf/alone/{ATTEMPT}/{number}"
        began = time.monotonic()
        self.heard = {
            other: Heartbeat(0, "not heard of yet", 0.0, began) for other in range(world_size) if other != rank
        }
        self._warned: set[int] = set()
        self._stacks: dict[int, str] = {}
        self.ended_at_deadline = dist.is_initialized() and dist.get_backend() == "nccl"
        """A collective that is late ends this process, without an error that could say anything: NCCL's watchdog."""
        self._awaited: Wait | None = None
        self._told: Wait | None = None
        self._over, self._asking, self._wake = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._exchange, name=NAME, daemon=True)
        self._thread.start()

    @classmethod
    def join(cls, rank: int, world_size: int) -> RankMonitor | None:
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
        cls.joined += 1
        return cls(store, rank, world_size, cls.joined)

    def leave_section(self) -> int:
        """Count a work of rank 0 alone that this rank leaves; all ranks leave them in the same order."""
        self._sections += 1
        return self._sections

    def report_done(self, work: int, error: str) -> None:
        """Say that rank 0 has left a work; nothing where the store is gone, since nobody is there to read it."""
        with contextlib.suppress(RuntimeError):
            self.store.set(self._alone, f"{work} {error}")

    def done(self, work: int) -> str | None:
        """The error with which rank 0 left a work, empty if there was none; None if it is still at it."""
        if not self.store.check([self._alone]):
            return None
        last, _, error = self.store.get(self._alone).decode().partition(" ")
        return error if int(last) >= work else None

    def has_ended(self, other: int) -> bool:
        """Whether the process of a rank on this machine has ended; False where that cannot be known."""
        host, _, pid = self.heard[other].process.rpartition(":")
        return host == _host() != "" and not _runs(int(pid))

    def _exchange(self) -> None:
        beat, failures = 0, 0
        while not self._over.is_set():
            beat += 1
            at, seconds = position()
            row = {"beat": beat, "at": at, "seconds": seconds, "process": this_process()}
            try:
                self.store.set(f"rlhf/rank/{self.rank}", json.dumps(row))
                for other in self.heard:
                    self._listen(other)
                self._exchange_stacks()
                self._tell_if_overdue()
                failures = 0
            except RuntimeError:  # the launcher, and its store, are gone, or slow for a moment
                failures += 1
                if failures == MOST_FAILURES:
                    return
            self._wake.wait(BEAT_S / 10 if self._asking.is_set() else BEAT_S)
            self._wake.clear()

    def _exchange_stacks(self) -> None:
        if self._asking.is_set():
            self.store.set(ASKED, str(self.rank))
        if self.rank not in self._stacks and self.store.check([ASKED]):
            self._stacks[self.rank] = stacks_here()
            self.store.set(f"{ASKED}/{self.rank}", self._stacks[self.rank])
        for other in self.heard if self._asking.is_set() else ():
            if other not in self._stacks and self.store.check([f"{ASKED}/{other}"]):
                self._stacks[other] = self.store.get(f"{ASKED}/{other}").decode()

    @contextlib.contextmanager
    def awaiting(self, what: str, timeout_s: float) -> Generator[None, None, None]:
        """While the main thread waits; shortly before NCCL would end the process it is said who is missing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._awaited = Wait(what, time.monotonic(), timeout_s)
        try:
            yield
        finally:
            self._awaited = None

    def _tell_if_overdue(self) -> None:
        awaited = self._awaited
        if not self.ended_at_deadline or awaited is None or awaited is self._told:
            return
        left = awaited.began + awaited.timeout_s - time.monotonic()
        if left > EARLY_S:
            return
        self._asking.set()
        if len(self._stacks) > len(self.heard) or left < LAST_S:
            self._told = awaited
            log.error(
                "rank %d has waited %.0f s for the others (%s); at %.0f s NCCL ends this process\n%s\n%s",
                *(self.rank, awaited.timeout_s - left, awaited.what, awaited.timeout_s, self.describe()),
                self._stack_rows("did not say"),
            )

    def _listen(self, other: int) -> None:
        key = f"rlhf/rank/{other}"
        last = self.heard[other]
        if self.store.check([key]):
            heartbeat = json.loads(self.store.get(key))
            if heartbeat["beat"] != last.beat:
                self.heard[other] = Heartbeat(**heartbeat, since=time.monotonic())
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

    def stacks(self) -> str:
        """What every rank is doing, those that answer within ``STACKS_S``; of the others, that they did not."""
        self._asking.set()
        self._wake.set()
        end = time.monotonic() + STACKS_S
        while len(self._stacks) <= len(self.heard) and time.monotonic() < end and self._thread.is_alive():
            time.sleep(BEAT_S / 20)
        return self._stack_rows("did not say (stopped, swapped out or gone)")

    def _stack_rows(self, nothing: str) -> str:
        return "\n".join(f"rank {r}: {self._stacks.get(r, nothing)}" for r in range(self.world_size))

    def close(self) -> None:
        """Say nothing more; idempotent."""
        self._over.set()
        self._wake.set()
        self._thread.join(STORE_S)


def stacks_here() -> str:
    """Where this process's main thread is, and others that run the toolkit's code; innermost calls last."""
    frames = sys._current_frames()
    own, main = Path(__file__).parents[1], threading.main_thread()
    shown: list[str] = []
    for thread in sorted(threading.enumerate(), key=lambda t: t is not main):
        frame = frames.get(thread.ident or 0)
        if frame is None or thread.name == NAME:
            continue
        rows = traceback.extract_stack(frame)
        if thread is main or any(own in Path(row.filename).parents for row in rows):
            lines = [f"  {row.filename}:{row.lineno} in {row.name}" for row in rows[-FRAMES:]]
            shown.append("\n".join([f"thread {thread.name}", *lines]))
    return "\n".join(shown[:THREADS])


@contextlib.contextmanager
def waiting(what: str, rank: int, peers: RankMonitor | None, timeout_s: float) -> Generator[None, None, None]:
    """A wait for the other ranks."""
    began = time.monotonic()
    try:
        with contextlib.nullcontext() if peers is None else peers.awaiting(what, timeout_s):
            yield
    except RuntimeError as error:
        if isinstance(error, DeadlineExceeded) or not any(word in str(error).lower() for word in LOST):
            raise
        raise lost(what, rank, peers, timeout_s, began, str(error)) from error


def lost(
    what: str,
    rank: int,
    peers: RankMonitor | None,
    timeout_s: float,
    began: float,
    cause: str,
    whom: Sequence[int] = (),
) -> DeadlineExceeded:
    """The error of a wait that ended without another rank."""
    at, _ = position()
    waited = f"rank {rank} waited {time.monotonic() - began:.0f} s (deadline {timeout_s:.0f} s)"
    silent = whom or (peers.silent() if peers is not None else [])
    names = " and ".join(f"rank {r}" for r in silent) or "the others"
    return DeadlineExceeded(
        f"{waited} for {names} in {at}: {what}",
        why=f"{peers.describe()}\n{cause}\n{peers.stacks()}" if peers is not None else cause,
        fix="look at that rank's machine and messages; strategy.timeout_s is the deadline",
    )


def this_process() -> str:
    """Machine, namespace of process ids, and id. Example: ``node-3/pid:[4026531836]:4711``"""
    return f"{_host()}:{os.getpid()}"


def _host() -> str:
    """Where process ids mean the same; empty where /proc does not say."""
    try:
        return f"{platform.node()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
