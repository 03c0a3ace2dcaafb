"""Keeps beside a run which rows it trained on and held out; :mod:`rlhf_core.data.trained_rows` reads it."""

from __future__ import annotations

import logging
from pathlib import Path

from rlhf_core.data.atomic import write_json
from rlhf_core.data.datasets import Datasets
from rlhf_core.data.trained_rows import FILE, trained_on

log = logging.getLogger("rlhf")


class RowRecorder:
    """Keeps ``rows.json`` of a run, and warns once if its base model was trained on what it holds out.

    Args:
        run: its folder.
        model: ``model.path``.
    """

    def __init__(self, run: Path, model: str) -> None:
        self.run, self.model, self.warned, self.shared = run, model, False, 0
        self.rows: dict[str, list[str]] = {}

    def __call__(self, datasets: Datasets) -> None:
        """Write what was read so far, once the run's folder is there."""
        self.rows = {split: sorted({*datasets.content_keys(split).values()}) for split in ("train", "heldout")}
        self.write()
        self._compare(set(self.rows["train"]), set(self.rows["heldout"]))
        _, warning = trained_on(self.model, self.rows["heldout"])
        if warning and not self.warned:
            self.warned = True
            log.warning("%s; its figures on held-out rows are too good", warning)

    def _compare(self, train: set[str], heldout: set[str]) -> None:
        """Warn of rows on both sides: of a source's own splits, of several sources, or of ids for the same prompt."""
        shared = len(train & heldout)
        if shared > self.shared:
            log.warning(
                "%d of the %d held-out prompts are trained on too, so that figures on held-out rows are too good; "
                "dataset.heldout=FILE takes its rows from training",
                *(shared, len(heldout)),
            )
        self.shared = max(shared, self.shared)

    def write(self) -> None:
        """Write the rows if the run has begun; a trainer reads its data before its folder is made."""
        if self.rows and (self.run / "plan.json").exists():
            write_json(self.run / FILE, self.rows)
