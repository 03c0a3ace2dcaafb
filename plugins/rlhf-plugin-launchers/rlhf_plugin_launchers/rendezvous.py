"""Where the ranks of one launch meet before any process group: a key-value store in which each says plain values."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping
from datetime import timedelta
from typing import Any

from rlhf_core.config import UserError
from rlhf_plugin_launchers.rank import LAUNCH_TIMEOUT, RankInfo

POLL_S = 0.05
BEAT_S = 1.0
SEEN_S = 10.0
"""How long a rank that ends waits for the others to have read why; the store may end with it."""
ARRIVE_S = 60.0
"""How long rank 0 waits, where it ends early, for ranks that are still loading their libraries."""
AT_WORK_S = 3600.0
"""Longest wait for a rank that says that it is at work, and nothing else."""


class LostRanks(UserError):
    """The store of the launch is gone."""


class Rendezvous:
    """The ranks of one launch. Every wait has a deadline, and names the rank that was awaited."""

    def __init__(self, me: RankInfo) -> None:
        import torch.distributed as dist

        host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
        serves = me.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"  # else torchrun does
        try:
            store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
                host,
                int(port),
                is_master=serves,
                timeout=timedelta(seconds=me.timeout_s),
                wait_for_workers=False,
                multi_tenant=True,  # accelerate opens it again, in the same process
            )
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"{me.label} cannot {'listen' if serves else 'reach the other ranks'} at {host}:{port}",
                why=str(error).splitlines()[0],
                fix=("" if serves else "rank 0 may have ended: look at its message first; ")
                + "MASTER_ADDR is rank 0's machine, as the others reach it, and MASTER_PORT a free port there; "
                f"{LAUNCH_TIMEOUT} is the deadline ({me.timeout_s:g} s)",
            ) from error
        self.me = me
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self.store = dist.PrefixStore(f"rlhf/launch/{attempt}", store)  # pyright: ignore[reportPrivateImportUsage]
        self.put(f"arrived/{me.rank}", {"host": socket.gethostname(), "pid": os.getpid()})

    def put(self, key: str, value: Any) -> None:
        """Let every rank read a plain value."""
        with self._connected():
            self.store.set(key, json.dumps(value))

    def get(self, key: str, rank: int, what: str, alive: Callable[[], object] | None = None) -> Any:
        """Wait for what a rank says.

        ``alive`` changes while that rank is at work; the deadline then counts from the last change, for an hour.
        """
        began, beat = time.monotonic(), None
        ends, latest = began + self.me.timeout_s, began + max(AT_WORK_S, self.me.timeout_s)
        while not self._there(key):
            if alive is not None and (now := alive()) != beat:
                ends, beat = min(time.monotonic() + self.me.timeout_s, latest), now
            if time.monotonic() > ends:
                raise self._late([rank], what, time.monotonic() - began, at_work=ends == latest)
            time.sleep(POLL_S)
        return self._read(key)

    def get_all(self, name: str, what: str) -> Mapping[int, Any]:
        """Wait for what every other rank says under ``NAME/RANK``, by one deadline."""
        missing, rows = [r for r in range(self.me.world_size) if r != self.me.rank], dict[int, Any]()
        ends = time.monotonic() + self.me.timeout_s
        while missing:
            for rank in [r for r in missing if self._there(f"{name}/{r}")]:
                rows[rank] = self._read(f"{name}/{rank}")
                missing.remove(rank)
            if missing and time.monotonic() > ends:
                raise self._late(missing, what, self.me.timeout_s)
            time.sleep(POLL_S if missing else 0)
        return rows

    def beat(self) -> object:
        """Changes while rank 0 is at work."""
        return self._read("beat") if self._there("beat") else None

    @contextlib.contextmanager
    def beating(self) -> Generator[threading.Event, None, None]:
        """Say that this rank is at work, however long it takes, until the event is set."""
        over = threading.Event()

        def run() -> None:
            count = 0
            with contextlib.suppress(LostRanks):  # the store is gone; whoever waits for it says so
                while not over.wait(BEAT_S if count else 0.0):
                    count += 1
                    self.put("beat", count)

        thread = threading.Thread(target=run, name="launch-beat", daemon=True)
        thread.start()
        try:
            yield over
        finally:
            over.set()
            thread.join(BEAT_S)

    def wait_until_seen(self, name: str, *, absent_too: bool = False) -> None:
        """Give the other ranks some time to have read something; with ``absent_too`` also those not yet here."""
        others = [r for r in range(self.me.world_size) if r != self.me.rank]
        ends = time.monotonic() + (min(ARRIVE_S, self.me.timeout_s) if absent_too else SEEN_S)
        with contextlib.suppress(LostRanks):
            awaited = [r for r in others if absent_too or self._there(f"arrived/{r}")]
            while time.monotonic() < ends and not all(self._there(f"{name}/{r}") for r in awaited):
                time.sleep(POLL_S)

    def _there(self, key: str) -> bool:
        with self._connected():
            return bool(self.store.check([key]))

    def _read(self, key: str) -> Any:
        with self._connected():
            return json.loads(self.store.get(key))

    @contextlib.contextmanager
    def _connected(self) -> Generator[None, None, None]:
        try:
            yield
        except RuntimeError as error:
            raise LostRanks(
                f"{self.me.label} lost the other ranks before the run began",
                where=f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
                why=str(error).splitlines()[0],
                fix="look at the messages of rank 0's machine",
            ) from error

    def _late(self, ranks: list[int], what: str, seconds: float, *, at_work: bool = False) -> UserError:
        absent = [r for r in ranks if not self._there(f"arrived/{r}")]
        rows = [f"rank {r} never arrived" for r in absent]
        last = "was still at work" if at_work else "arrived, then said nothing"
        rows += [f"rank {r} on {self._read(f'arrived/{r}')['host']} {last}" for r in ranks if r not in absent]
        return UserError(
            f"{self.me.label} waited {round(seconds, 1):g} s for {what}: {'; '.join(rows)}",
            where=f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}, {self.me.world_size} ranks",
            fix="start the launcher on every machine, with the same address and number of processes; "
            f"{LAUNCH_TIMEOUT} is the deadline",
        )
