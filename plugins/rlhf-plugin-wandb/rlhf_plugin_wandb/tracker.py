"""The tracker itself: one wandb run per run folder."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import wandb

from rlhf_core.config import BuildContext

if TYPE_CHECKING:
    from rlhf_plugin_wandb.config import WandbConfig


class WandbTracker:
    """Logs into one wandb run, started at once so that a refused key stops the run before step 0."""

    def __init__(self, config: WandbConfig, ctx: BuildContext) -> None:
        folder = ctx.run_dir
        self._run = wandb.init(
            project=config.project,
            entity=config.entity,
            mode=config.mode,
            id=run_id(folder),
            resume="allow",
            name=config.run_name or (folder.name if folder else None),
            dir=str(folder) if folder else None,
            config=ctx.config.model_dump(mode="json") if ctx.config else None,
            settings=wandb.Settings(console="off", silent=True, save_code=False, disable_git=True),
        )
        self._closed = False

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record one step; wandb keeps values that are not finite."""
        self._run.log({k: float(v) for k, v in metrics.items()}, step=step)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._run.finish()


def run_id(folder: Path | None) -> str | None:
    """The wandb run id that belongs to a run folder: made once, read again on resume. None without a folder."""
    if folder is None:
        return None
    file = folder / "wandb_run_id"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(uuid.uuid4().hex[:12])
    return file.read_text().strip()
