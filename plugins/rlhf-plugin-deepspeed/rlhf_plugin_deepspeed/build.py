"""The strategy of a stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_core.api import BuildContext
from rlhf_plugin_deepspeed.tested import check_installation

if TYPE_CHECKING:
    from rlhf_plugin_deepspeed.config import DeepSpeedConfig
    from rlhf_plugin_deepspeed.strategy import Zero


def build(config: DeepSpeedConfig, ctx: BuildContext) -> Zero:
    """The strategy of this process."""
    from rlhf_plugin_deepspeed.stage3 import Zero3
    from rlhf_plugin_deepspeed.strategy import Zero

    check_installation(config)
    ddp = ctx.registry.load("strategy", "ddp").model_validate({"timeout_s": config.timeout_s, "device": config.device})
    return (Zero3 if config.stage == 3 else Zero)(config, ddp.build(ctx))
