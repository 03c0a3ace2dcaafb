"""What handing over the policy's weights costs, for the metrics of a step and for the summary."""

from __future__ import annotations

import time
from typing import Any


class SyncCosts:
    """Adds up syncs in a row of the summary (``syncs``, ``sync_seconds``, ``sync_bytes`` of the last one)."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.row, self._bytes, self._seconds = row, 0, 0.0
        row |= {"syncs": 0, "sync_seconds": 0.0, "sync_bytes": 0, "canary_largest": 0.0}

    def add(self, size: int, start: float) -> None:
        """One more version: its bytes, and when it began (``time.monotonic``); the canary is counted."""
        seconds, row = time.monotonic() - start, self.row
        row["syncs"], row["sync_bytes"] = row["syncs"] + 1, size
        row["sync_seconds"] = round(row["sync_seconds"] + seconds, 3)
        self._bytes, self._seconds = self._bytes + size, self._seconds + seconds

    def metrics(self) -> dict[str, float]:
        """``sync/bytes`` and ``sync/seconds`` of the versions since the last call; empty if there was none."""
        size, seconds, self._bytes, self._seconds = self._bytes, self._seconds, 0, 0.0
        return {"sync/bytes": float(size), "sync/seconds": round(seconds, 4)} if size else {}
