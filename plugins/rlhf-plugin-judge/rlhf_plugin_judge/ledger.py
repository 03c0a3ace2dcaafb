"""Tokens and money in an append-only file with a cap for all processes: the worst case is reserved before anything is
sent, and replaced by the real cost; what a killed process reserved stays, so the cap holds over restarts."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import threading
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rlhf_core.config import ConfigError
from rlhf_plugin_judge.prices import NANO


class Ledger:
    """A JSONL file of ``reserve``, ``settle`` and ``batch`` rows below ``cap_usd``, changed under a lock on the
    file."""

    def __init__(self, path: Path, cap_usd: float) -> None:
        self.path, self.cap = path, int(cap_usd * NANO)
        self.amounts: dict[str, int] = {}
        """Reservation -> nano-dollars, its worst case until it is settled."""
        self.total = 0
        """Nano-dollars spent or reserved, as of the last change that this process made."""
        self.settled: set[str] = set()
        self.batches: dict[str, dict[str, Any]] = {}
        self._open: dict[str, set[str]] = {}
        """Question -> its reservations that nobody has settled."""
        self._lost: set[str] = set()
        """Questions with an attempt that ended without an answer and may have been billed."""
        self._reserved_here: set[str] = set()
        self._seen, self._line, self._lock = 0, 0, threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked():
                pass
        except OSError as error:
            raise ConfigError(
                f"the judge's ledger cannot be written: {error.strerror}",
                where=str(path),
                fix="set judge.ledger to a file that can be written",
            ) from error

    def reserve(self, nano: int, purpose: str) -> str | None:
        with self._locked() as file:
            if self.total + nano > self.cap:
                return None
            name = uuid.uuid4().hex
            self._reserved_here.add(name)
            self._write(file, {"op": "reserve", "id": name, "usd": nano / NANO, "what": purpose})
            return name

    def settle(self, name: str, nano: int, **facts: Any) -> None:
        """Replace a reservation by what was spent; ``facts`` (tokens, what went wrong) are kept with it."""
        with self._locked() as file:
            self._write(file, {"op": "settle", "id": name, "usd": nano / NANO, **facts})

    def unanswered(self, what: str, how: str) -> bool:
        """Whether an attempt may have been billed without an answer: in flight elsewhere, killed or timed out."""
        with self._locked():
            return what in self._lost if how == "timeout" else bool(self._open.get(what, set()) - self._reserved_here)

    def note_batch(self, batch: str, name: str, digests: list[str]) -> None:
        """Remember which message batch holds which questions, paid from which reservation."""
        with self._locked() as file:
            self._write(file, {"op": "batch", "batch": batch, "id": name, "digests": digests})

    def open_batches(self) -> list[dict[str, Any]]:
        """Batches that were sent and whose results nobody has fetched."""
        with self._locked():
            return [row for row in self.batches.values() if row["id"] not in self.settled]

    @contextmanager
    def _locked(self) -> Generator[IO[bytes], None, None]:
        with self._lock, self.path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._catch_up(file)
            yield file

    def _catch_up(self, file: IO[bytes]) -> None:
        """Read what other processes have added; we hold the lock, so a torn last row has no living writer."""
        file.seek(self._seen)
        data = file.read()
        complete = data[: data.rfind(b"\n") + 1]
        if len(complete) < len(data):
            file.truncate(self._seen + len(complete))
        for line in complete.splitlines():
            self._line += 1
            self._take(line)
        self._seen += len(complete)

    def _write(self, file: IO[bytes], row: dict[str, Any]) -> None:
        line = json.dumps({**row, "at": round(time.time(), 3), "pid": os.getpid()}).encode()
        file.write(line + b"\n")
        file.flush()
        self._seen += len(line) + 1
        self._line += 1
        self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            row = json.loads(line)
            op, name = row["op"], row["id"]
            if op == "batch":
                self.batches[row["batch"]] = row
                return
            amount = round(row["usd"] * NANO)
            self.total += amount - self.amounts.get(name, 0)
            self.amounts[name] = amount
            if op == "settle":
                self.settled.add(name)
            self._note_question(str(row.get("what", "")), name, op == "settle", amount, "output" in row)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                "the judge's ledger is damaged: what was spent is not known",
                where=f"{self.path}, line {self._line}",
                fix="fix that line, or set judge.ledger to another file",
            ) from error

    def _note_question(self, what: str, name: str, settled: bool, amount: int, answered: bool) -> None:
        """Remember of a question whether an attempt that costs something is open, or ended without an answer."""
        if not settled and amount:
            self._open.setdefault(what, set()).add(name)
        elif settled:
            self._open.get(what, set()).discard(name)
            if answered:
                self._lost.discard(what)
            elif amount and what:
                self._lost.add(what)


class Budget:
    """The ledger of one event loop; at the cap a reservation waits for requests in flight to release some."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.open = ledger, 0
        self._freed = asyncio.Event()

    async def reserve(self, nano: int, purpose: str) -> str | None:
        """Set ``nano`` aside; None if it does not fit, with nothing in flight that could release some."""
        while (name := self.ledger.reserve(nano, purpose)) is None:
            if not self.open:
                return None
            self._freed.clear()
            await self._freed.wait()
        self.open += 1
        return name

    def settle(self, name: str, nano: int, **facts: Any) -> None:
        self.ledger.settle(name, nano, **facts)
        self.open -= 1
        self._freed.set()
