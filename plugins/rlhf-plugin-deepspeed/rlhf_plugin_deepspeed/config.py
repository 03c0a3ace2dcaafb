"""Settings of the strategy, and what they cannot be."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rlhf_core.config import BuildContext, ComponentConfig, ConfigError
from rlhf_plugin_deepspeed.tested import check_installation, check_run, missing

Stage = Literal[1, 2, 3]


class DeepSpeedConfig(ComponentConfig):
    """Moments (stage 1), gradients too (2), weights too (3) divided among ranks (DeepSpeed's ZeRO)."""

    name: str = "deepspeed"
    component: ClassVar[str] = "rlhf_plugin_deepspeed.stage3:build"
    stage: Stage = 3
    """What is divided: moments, moments and gradients, or weights as well."""
    offload: bool = False
    """Moments, the copy of the weights that is stepped and gradients lie in the host's memory."""
    offload_weights: bool = False
    """Each rank's part of the weights lies there too; stage 3."""
    bucket: int = Field(50_000_000, ge=1)
    """Elements of gradients that are added over ranks at once."""
    allow_untested: bool = False
    """Run with a version of DeepSpeed that this plugin was not tested with."""
    timeout_s: float = Field(600.0, gt=0)
    """Deadline of every collective operation, seconds."""
    device: Literal["auto", "cpu", "cuda"] = "auto"

    @property
    def planned_as(self) -> str:
        name = f"zero{self.stage}"
        if not self.offload:
            return name
        return f"{name}_offload" if self.stage < 3 or self.offload_weights else f"{name}_offload_moments"

    @staticmethod
    def lacks() -> str:
        """What is missing for any run with it; "" if nothing is."""
        return missing()

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse what DeepSpeed cannot do here, and runs that it was not compared for."""
        if self.offload_weights and not (self.stage == 3 and self.offload):
            raise ConfigError(
                f"strategy.offload_weights with stage {self.stage} and offload={str(self.offload).lower()}",
                why="parts of weights are divided in stage 3 only, and are stepped where the moments are",
                fix="--set strategy.stage=3 --set strategy.offload=true, or leave it out",
            )
        check_run(ctx.config, self)
        check_installation(self)
