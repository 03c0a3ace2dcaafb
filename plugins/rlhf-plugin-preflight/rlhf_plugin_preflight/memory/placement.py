"""Which of the planned layouts a run has."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rlhf_core.config import ConfigError, did_you_mean
from rlhf_plugin_preflight.memory.layouts import STRATEGIES, Name
from rlhf_plugin_preflight.memory.plan import BUCKET, Placement

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext


def placement_of(ctx: BuildContext) -> Placement:
    """How the run's strategy shares the bytes out, if it is one of those that are planned; whole ranks if not."""
    chosen = ctx.config.strategy
    if ctx.world_size == 1 or chosen is None:
        return Placement("single") if ctx.world_size == 1 else Placement("ddp", ctx.world_size)
    size = getattr(chosen, "shard_size", None)
    name = f"{chosen.name}_offload" if getattr(chosen, "offload", False) else "hsdp" if size else chosen.name
    name = getattr(chosen, "planned_as", name)  # a strategy whose settings choose among several layouts
    known = name if name in STRATEGIES and name != "single" else "ddp"
    bucket = getattr(chosen, "bucket", BUCKET)
    return Placement(cast("Name", known), ctx.world_size, size or ctx.world_size, bucket=bucket)


def asked_for(
    ctx: BuildContext, strategy: str | None, ranks: int, ranks_per_node: int | None, tensor: int, pipeline: int
) -> Placement:
    """A layout that somebody asks about; what is left out is the run's own. ``tensor`` ranks share every layer,
    ``pipeline`` is the number of groups of layers."""
    own = placement_of(ctx)
    name = strategy or (own.strategy if ctx.world_size > 1 else "single" if ranks == 1 else "ddp")
    if name not in STRATEGIES:
        near = did_you_mean(name, STRATEGIES, limit=1)
        raise ConfigError(f"there is no strategy '{name}' to plan for", why=near, fix=f"one of {', '.join(STRATEGIES)}")
    per_node = ranks_per_node or (own.ranks_per_node if name == own.strategy == "hsdp" else Placement.ranks_per_node)
    return Placement(name, ranks, per_node, tensor, pipeline)
