"""Strategies of the core: one process, or data parallel through accelerate."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from rlhf_core.plugins.component import ComponentConfig
from rlhf_core.types.errors import ConfigError

if TYPE_CHECKING:
    from rlhf_core.plugins.context import BuildContext


class AutoStrategyConfig(ComponentConfig):
    """One process, or DDP when there are several ranks."""

    name: str = "auto"
    component: ClassVar[str] = "rlhf_core.distributed.accelerated:AcceleratedStrategy.from_config"
    timeout_s: float = Field(600.0, gt=0)
    """Deadline of every collective operation, seconds."""
    device: Literal["auto", "cpu", "cuda"] = "auto"


class SingleStrategyConfig(AutoStrategyConfig):
    """Exactly one process."""

    name: str = "single"

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse several ranks."""
        if ctx.world_size != 1:
            raise ConfigError(
                f"strategy 'single' cannot run on {ctx.world_size} processes", fix="drop --nproc or use ddp"
            )


class DDPStrategyConfig(AutoStrategyConfig):
    """Data parallel: every rank holds the whole model."""

    name: str = "ddp"
