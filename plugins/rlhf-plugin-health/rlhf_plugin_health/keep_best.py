"""The best checkpoint by an evaluation, kept beside the last ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.data import whole_folder, write_json
from rlhf_core.hooks import StepMetrics, StopRun, hookimpl
from rlhf_plugin_health.config import KeepBestConfig
from rlhf_plugin_health.evaluations import EvaluationMonitor

FILE = "best.json"
"""Says of which step the model beside it is, and its value."""


class KeepBest(EvaluationMonitor):
    """Copies the model of the checkpoint with the best evaluation to ``RUN/best``, as soon as it is written."""

    def __init__(self, config: KeepBestConfig, ctx: BuildContext) -> None:
        self.sign = 1 if config.mode == "max" else -1
        self.best: tuple[int, float] | None = None
        """(Step, value); of steps with a checkpoint."""
        self.start: float | None = None
        super().__init__(config, ctx, config.metric)
        assert self.session is not None, "a monitor is built in a run"
        self.folder = Path(self.session.dir.path) / "best"
        self.report = ctx.report

    @hookimpl
    def rlhf_eval_end(self, event: StepMetrics) -> None:
        """Read an evaluation; the first says whether there is such a metric."""
        if event.step == 0 and self.metric not in event.metrics and self.session.main:
            raise StopRun(
                f"{self.name}: no evaluation has '{self.metric}'; there are {', '.join(sorted(event.metrics))}"
            )
        super().rlhf_eval_end(event)

    def read(self, step: int, value: float) -> None:
        """Note the best; that of the last step, whose checkpoint is there already, is copied at once."""
        if step == 0:
            self.start = value
        elif self.best is None or self.sign * (value - self.best[1]) > 0:
            self.best = (step, value)
            self._copy(step)
        self._note()

    @hookimpl
    def rlhf_checkpoint_saved(self, event: Any) -> None:
        """Copy the model of the step that was just found to be the best."""
        if self.best is not None and event.step == self.best[0]:
            self._copy(event.step)

    def _copy(self, step: int) -> None:
        source = self.session.checkpoints.path(step)
        if self.best is None or not self.session.main or not source.is_dir():
            return
        with whole_folder(self.folder) as folder:
            shutil.copytree(source / "model", folder, dirs_exist_ok=True)
            write_json(folder / FILE, {"metric": self.metric, "step": step, "value": self.best[1]})

    def _note(self) -> None:
        """For the summary and the report."""
        best = {} if self.best is None else {"step": self.best[0], "value": self.best[1], "folder": "best"}
        self.report["best"] = {"metric": self.metric, "start": self.start, **best, "not_compared": list(self.others)}

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "start": self.start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on; the process may have ended between a checkpoint and the copy of it."""
        best: Any = state["best"]
        self.best, self.start = None if best is None else (int(best[0]), float(best[1])), state["start"]
        kept: Mapping[str, Any] = json.loads((self.folder / FILE).read_text()) if (self.folder / FILE).is_file() else {}
        written = int(kept.get("step", 0))
        if self.best is not None and written < self.best[0]:
            self._copy(self.best[0])
        elif written > (self.best[0] if self.best else 0):  # of a checkpoint that was lost since; the model is there
            self.best = (written, float(kept["value"]))
        self._note()
