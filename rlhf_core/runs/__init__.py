"""Run directories, stored runs, monitors, trackers, benchmarks, and statistics of results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_core._surface import surface

if TYPE_CHECKING:
    from rlhf_core.runs.metrics import wilson as wilson
    from rlhf_core.runs.metrics import win_rate as win_rate
    from rlhf_core.runs.read import StoredRun as StoredRun

__getattr__, __dir__ = surface(__name__)
