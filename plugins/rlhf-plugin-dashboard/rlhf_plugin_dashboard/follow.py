"""Reads a JSONL file that another process appends to: every byte once, and never half of a row."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

MEMORY = 64
"""Bytes before the offset that are compared at the next reading: a resumed run cuts its files and goes on."""


@dataclass(frozen=True)
class Increment:
    rows: Sequence[dict[str, Any]] = ()
    restarted: bool = False
    """The file was cut or replaced: earlier rows no longer count, and these are all of them."""
    damaged: int = 0
    """Whole lines that hold no JSON object; they are left out."""


@dataclass
class Follower:
    """Position in one file, which may not be there yet; at most the ``newest`` bytes are read at once."""

    path: Path
    newest: int | None = None
    skipped: bool = False
    """Whether the file's beginning was not read."""
    _offset: int = 0
    _before: bytes = b""
    _file: tuple[int, int] = (0, 0)
    _started: bool = field(default=False)

    def read(self) -> Increment:
        try:
            with self.path.open("rb") as file:
                return self._read(file)
        except FileNotFoundError:
            restarted, self._started, self._offset = self._started, False, 0
            return Increment(restarted=restarted)

    def _read(self, file: BinaryIO) -> Increment:
        status = os.fstat(file.fileno())
        restarted = self._started and not self._continues(file, (status.st_dev, status.st_ino), status.st_size)
        behind = self.newest is not None and status.st_size - self._offset > self.newest
        if restarted or behind or not self._started:
            self._offset = self._start(file, status.st_size)
            self.skipped = self._offset > 0
        self._started, self._file = True, (status.st_dev, status.st_ino)
        file.seek(self._offset)
        data = file.read(max(0, status.st_size - self._offset))
        lines = data.split(b"\n")[:-1]
        self._offset += sum(len(line) + 1 for line in lines)
        self._before = self._tail(file)
        rows = [row for row in map(_row, lines) if row is not None]
        return Increment(rows, restarted, len(lines) - len(rows))

    def _continues(self, file: BinaryIO, identity: tuple[int, int], size: int) -> bool:
        return identity == self._file and size >= self._offset and self._tail(file) == self._before

    def _tail(self, file: BinaryIO) -> bytes:
        start = max(0, self._offset - MEMORY)
        file.seek(start)
        return file.read(self._offset - start)

    def _start(self, file: BinaryIO, size: int) -> int:
        """Offset of the first row to read: the window grows until it holds a whole row."""
        window = self.newest
        while window is not None and window < size:
            file.seek(size - window)
            data = file.read(window)
            first = data.find(b"\n")
            if 0 <= first < len(data) - 1 and data.find(b"\n", first + 1) >= 0:
                return size - window + first + 1
            window *= 2
        return 0


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
