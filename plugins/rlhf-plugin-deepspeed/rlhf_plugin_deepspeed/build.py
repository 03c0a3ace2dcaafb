"""The strategy of a stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_core.config import BuildContext
from rlhf_plugin_deepspeed.tested import check_installation

if TYPE_CHECKING:
    from rlhf_plugin_deepspeed.config import DeepSpeedConfig
    from rlhf_plugin_deepspeed.strategy import Zero


def build(config: DeepSpeedConfig, ctx: BuildContext) -> Zero:
    from rlhf_plugin_deepspeed.stage3 import Zero3
    from rlhf_plugin_deepspeed.strategy import Zero

    check_installation(config)
    strategy = Zero3 if config.stage == 3 else Zero
    return strategy(config, strategy.ranks_of(ctx, config.timeout_s, config.device))
