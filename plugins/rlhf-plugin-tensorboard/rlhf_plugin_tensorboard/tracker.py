"""The tracker itself: one scalar per metric and step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard.writer import SummaryWriter


class TensorBoardTracker:
    """Writes event files into one folder."""

    def __init__(self, folder: Path, flush_seconds: int, report: dict[str, Any]) -> None:
        self.folder, self.flush_seconds, self.report = folder, flush_seconds, report
        self._writer: SummaryWriter | None = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        writer = self._writer = self._writer or self._open(step)
        for name, value in metrics.items():
            if math.isfinite(value):
                writer.add_scalar(name, float(value), step)
            else:
                self.report["tensorboard/not_finite"] = self.report.get("tensorboard/not_finite", 0) + 1

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self, step: int) -> SummaryWriter:
        """Open a new event file. Readers forget what earlier files say of ``step`` and later: no twins on resume."""
        return SummaryWriter(str(self.folder), purge_step=step, flush_secs=self.flush_seconds)
