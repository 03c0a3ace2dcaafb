"""Strategies: ranks, gradients, devices and weights that are divided."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_core._surface import surface

if TYPE_CHECKING:
    from rlhf_core.distributed.group import DelegatingCollectives as DelegatingCollectives
    from rlhf_core.distributed.group import LocalStrategy as LocalStrategy
    from rlhf_core.distributed.whole_weights import decoder_layers as decoder_layers
    from rlhf_core.plugins.strategy_protocols import NormPart as NormPart
    from rlhf_core.plugins.strategy_protocols import OptimizerPlan as OptimizerPlan
    from rlhf_core.plugins.strategy_protocols import ShardedForward as ShardedForward
    from rlhf_core.plugins.strategy_protocols import Strategy as Strategy

__getattr__, __dir__ = surface(__name__)
