"""Settings of the Weights & Biases tracker."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Literal

from rlhf_core.config import BuildContext, ComponentConfig, ConfigError, PluginError

if TYPE_CHECKING:
    from rlhf_plugin_wandb.tracker import WandbTracker


class WandbConfig(ComponentConfig):
    """Metrics and configuration in Weights & Biases. The key comes from ``WANDB_API_KEY`` only."""

    name: str = "wandb"
    project: str = "rlhf"
    """Project that the run belongs to."""
    entity: str | None = None
    """User or team; None takes the key's own."""
    run_name: str | None = None
    """Name shown on the page; None takes the run folder's."""
    mode: Literal["online", "offline", "disabled"] = "online"
    """``offline`` writes to the run's folder, for ``wandb sync`` later."""

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse what could only fail after the models are loaded."""
        if importlib.util.find_spec("wandb") is None:
            raise PluginError(
                "tracker 'wandb' cannot be used: the package wandb is not installed",
                where="rlhf-plugin-wandb",
                fix="pip install 'rlhf-plugin-wandb[wandb]'",
            )
        if self.mode == "online" and not os.environ.get("WANDB_API_KEY"):
            raise ConfigError(
                "tracker 'wandb' is online, but there is no key",
                why="the environment variable WANDB_API_KEY is not set",
                fix="export WANDB_API_KEY=..., or --set 'trackers=[{name: wandb, mode: offline}]'",
            )

    def build(self, ctx: BuildContext) -> WandbTracker:
        """Start the run and return the tracker; the key and the package are checked before wandb is imported."""
        self.preflight(ctx)
        from rlhf_plugin_wandb.tracker import WandbTracker

        return WandbTracker(self, ctx)
