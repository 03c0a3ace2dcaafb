"""Settings of the TensorBoard tracker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from rlhf_core.config import BuildContext, ComponentConfig, PluginError

if TYPE_CHECKING:
    from rlhf_plugin_tensorboard.tracker import TensorBoardTracker


class TensorBoardConfig(ComponentConfig):
    """Metrics as TensorBoard event files."""

    name: str = "tensorboard"
    log_dir: Path | None = None
    """Folder of the event files; None writes to ``tensorboard`` inside the run's folder."""
    flush_seconds: int = Field(30, ge=1)
    """How long a metric may stay in memory before it is on disk."""

    def build(self, ctx: BuildContext) -> TensorBoardTracker:
        """Return the tracker; it writes to the run's folder unless told otherwise."""
        folder = self.log_dir or (ctx.run_dir / "tensorboard" if ctx.run_dir else None)
        if folder is None:
            raise PluginError(
                "tracker 'tensorboard' has no folder to write to",
                why="this run has no folder of its own",
                fix="--set 'trackers=[{name: tensorboard, log_dir: logs}]'",
            )
        try:
            from rlhf_plugin_tensorboard.tracker import TensorBoardTracker
        except ImportError as error:
            raise PluginError(
                f"tracker 'tensorboard' cannot be used: {error}",
                where="rlhf-plugin-tensorboard",
                fix="pip install tensorboard",
            ) from error
        return TensorBoardTracker(folder, self.flush_seconds, ctx.report)
