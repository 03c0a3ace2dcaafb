"""Settings of the strategy, and what they cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from rlhf_core.config import BuildContext, ComponentConfig, ConfigError
from rlhf_plugin_fsdp.tested import check_run

if TYPE_CHECKING:
    from rlhf_plugin_fsdp.strategy import Fsdp

Dtype = Literal["float32", "bfloat16"]


class FsdpConfig(ComponentConfig):
    """Weights, gradients and moments divided among ranks, layer by layer (FSDP2)."""

    name: str = "fsdp"
    component: ClassVar[str] = "rlhf_plugin_fsdp.strategy:Fsdp.from_config"
    shard_size: int | None = Field(None, ge=1)
    """Ranks that a weight is divided among; None takes all. Fewer make replicas (HSDP)."""
    param_dtype: Dtype = "float32"
    """In which decoder layers are gathered and computed; what is stored and stepped stays as it was loaded."""
    reduce_dtype: Dtype = "float32"
    """In which gradients are added over ranks."""
    offload: bool = False
    """Shards, gradients and moments lie in the host's memory between uses."""
    reshard_after_forward: bool = True
    """False keeps a layer whole until its backward."""
    sync_every_micro_batch: bool = True
    """False keeps whole gradients until the last micro-batch."""
    timeout_s: float = Field(600.0, gt=0)
    """Deadline of every collective operation, seconds."""
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse what cannot be laid out on these ranks, and runs that shards were not compared for."""
        check_run(ctx.config)
        if self.shard_size is not None and ctx.world_size % self.shard_size:
            raise ConfigError(
                f"strategy.shard_size {self.shard_size} does not divide {ctx.world_size} ranks",
                why="every replica of the model has as many ranks",
                fix="leave it out, or take the number of ranks of a node",
            )
        precision = getattr(ctx.config.trainer, "precision", "fp32")
        if self.param_dtype == "bfloat16" and precision != "bf16":
            raise ConfigError(
                f"strategy.param_dtype bfloat16 with trainer.precision {precision}",
                why="layers would have weights of another type than what they are given",
                fix="--set trainer.precision=bf16, or leave out strategy.param_dtype",
            )
        if self.offload:
            import torch

            if self.device == "cpu" or not torch.cuda.is_available():
                raise ConfigError(
                    "strategy.offload without CUDA",
                    why="weights lie in the host's memory already",
                    fix="leave it out",
                )

    def build(self, ctx: BuildContext) -> Fsdp:
        """Return the strategy of this rank."""
        from rlhf_plugin_fsdp.strategy import Fsdp

        return Fsdp.from_config(self, ctx)
