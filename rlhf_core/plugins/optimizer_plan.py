"""The optimizer of a run, planned by parameter name before a strategy shards anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlhf_core.types.errors import PluginError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class OptimizerGroup:
    """Parameters that learn alike.

    Example:
        OptimizerGroup(("model.lm_head.weight",), learning_rate=1e-6, weight_decay=0.1, apart=False)
    """

    names: tuple[str, ...]
    """As ``module.named_parameters()`` has them before the module is prepared."""
    learning_rate: float
    """Before the schedule."""
    weight_decay: float
    apart: bool
    """Of the critic, whose schedule is its own."""


@dataclass(frozen=True, slots=True)
class OptimizerPlan:
    """AdamW over groups of named parameters (Loshchilov and Hutter 2019)."""

    groups: tuple[OptimizerGroup, ...]
    learning_rate: float
    betas: tuple[float, float]
    eps: float

    def torch_groups(self, module: torch.nn.Module) -> list[dict[str, Any]]:
        """Parameter groups as ``torch.optim`` takes them.

        Args:
            module: prepared and unwrapped; its parameters have the names of the plan.

        Raises:
            PluginError: a parameter of the plan is no longer there.
        """
        parameters = dict(module.named_parameters())
        lost = [name for group in self.groups for name in group.names if name not in parameters]
        if lost:
            raise PluginError(
                f"{len(lost)} trained parameters are not in the prepared module, such as '{lost[0]}'",
                why="the strategy renamed or replaced them",
                fix="let unwrap() return a module with the names it had, or implement prepare_training()",
            )
        return [
            {
                "params": [parameters[name] for name in group.names],
                "weight_decay": group.weight_decay,
                "base_lr": group.learning_rate,  # both saved with the optimizer's state
                "apart": group.apart,
            }
            for group in self.groups
        ]


@dataclass(frozen=True, slots=True)
class NormPart:
    """A part of the module whose gradient is measured and clipped by itself."""

    metric: str
    """Name of its norm, such as ``grad_norm``."""
    module: torch.nn.Module
    learns: bool = True
    """False drops its gradient: neither weights nor moments change, and no norm is returned."""
