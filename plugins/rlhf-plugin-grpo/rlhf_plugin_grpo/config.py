"""What the entry points name; importing this never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from rlhf_core.api import BuildContext, ComponentConfig, OnlineTrainerConfig, OptimizerSettings

if TYPE_CHECKING:
    from rlhf_plugin_grpo.advantage import GroupNorm
    from rlhf_plugin_grpo.loss import GrpoClip


class GrpoConfig(OnlineTrainerConfig):
    """GRPO: groups of completions are their own baseline, no critic (Shao et al. 2024)."""

    name: str = "grpo"
    companions: ClassVar[Mapping[str, Any]] = {
        "dataset": "pocket/assistant",
        "reward": "ensemble",
        "advantage": "group_norm",
        "loss": "grpo_clip",
    }
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pocket": {
            "trainer": {
                "name": "grpo",
                "steps": 14,
                "rollout_batch_size": 256,
                "micro_batch_size": 64,
                "eval_every": 10,
                "optimizer": {"learning_rate": 5e-4, "warmup_steps": 2},
                "sampling": {"max_tokens": 48},
            }
        }
    }
    group_size: int = Field(8, ge=1)
    optimizer: OptimizerSettings = OptimizerSettings(learning_rate=1e-5, warmup_steps=2)


class GroupNormConfig(ComponentConfig):
    """``(r - mean(group)) / std(group)``."""

    name: str = "group_norm"
    min_group_size: ClassVar[int] = 2
    scale: Literal["std", "none"] = "std"
    """``none`` only subtracts the mean (Liu et al. 2025, Dr. GRPO)."""
    epsilon: float = Field(1e-6, ge=0)
    """Added to the standard deviation."""
    relative_floor: float = Field(1e-4, ge=0)
    """A group whose std is below this share of its largest score is constant: rounding must not become signal."""

    def build(self, ctx: BuildContext) -> GroupNorm:
        """Return the estimator."""
        from rlhf_plugin_grpo.advantage import GroupNorm

        return GroupNorm(self)


class GrpoClipConfig(ComponentConfig):
    """``-min(rho A, clip(rho, 1 - eps, 1 + eps) A)`` per token."""

    name: str = "grpo_clip"
    consumes: ClassVar[str | None] = "token_advantages"
    clip_range: float = Field(0.2, gt=0)
    """Lower side: ratios below ``1 - clip_range`` are clipped."""
    clip_range_high: float | None = Field(None, gt=0)
    """Upper side; None uses ``clip_range`` (DAPO's clip-higher sets 0.28)."""

    def build(self, ctx: BuildContext) -> GrpoClip:
        """Return the loss."""
        from rlhf_plugin_grpo.loss import GrpoClip

        return GrpoClip(self.clip_range, self.clip_range_high or self.clip_range)
