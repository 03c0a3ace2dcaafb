"""The optimizer of a run: planned by parameter name before a strategy shards anything, stepped by it (ADR 0018)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from rlhf_core.models.slices import read_weights
from rlhf_core.plugins.strategy_protocols import OptimizerOwner, ShardedLoading
from rlhf_core.types.errors import PluginError
from rlhf_core.types.tree import Stored

if TYPE_CHECKING:
    from rlhf_core.plugins.strategy_protocols import NormPart, OptimizerPlan, RunOptimizer, Strategy


def fuses(groups: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one kernel makes the step: on a CUDA device. On a CPU it would round otherwise than earlier runs did."""
    return all(p.device.type == "cuda" for group in groups for p in group["params"])


def adamw(settings: Any, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """torch's AdamW."""
    fused = True if fuses(groups) else None
    return torch.optim.AdamW(groups, betas=settings.betas, eps=settings.eps, fused=fused)


class TorchOptimizer:
    """torch's optimizer over the parameters of a prepared module, clipped by the strategy."""

    def __init__(self, strategy: Strategy, module: torch.nn.Module, plan: OptimizerPlan) -> None:
        self.strategy, self.module = strategy, module
        self.inner = plan.optimizer(strategy.unwrap(module))

    def set_rates(self, factor: float, critic_factor: float) -> None:
        """Set the learning rates of the next step."""
        for group in self.inner.param_groups:
            group["lr"] = group["base_lr"] * (critic_factor if group["apart"] else factor)

    def step(self, parts: Sequence[NormPart], max_norm: float) -> dict[str, float]:
        """See :meth:`rlhf_core.plugins.strategy_protocols.RunOptimizer.step`."""
        norms = {p.metric: self.strategy.clip_grad_norm(p.module, max_norm) for p in parts if p.learns}
        for part in parts:
            if not part.learns:
                for parameter in part.module.parameters():
                    parameter.grad = None
        if all(math.isfinite(norm) for norm in norms.values()):
            self.inner.step()
        self.discard()
        return norms

    def discard(self) -> None:
        """Drop the gradients."""
        self.inner.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """This rank's state; all ranks call it."""
        return self.strategy.optimizer_state(self.module, self.inner)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it; moments that all ranks wrote together are read as the parameters lie now."""
        parameters = [p for group in self.inner.param_groups for p in group["params"]]
        device = {k: v for k, v in self.inner.defaults.items() if k == "fused"}  # wherever the checkpoint was written
        groups = [{**group, **device} for group in state["param_groups"]]
        moments = read_moments({**state, "param_groups": groups}, parameters)
        self.strategy.load_optimizer_state(self.module, self.inner, moments)


def read_moments(state: dict[str, Any], like: Sequence[torch.Tensor]) -> dict[str, Any]:
    """An optimizer's state out of a checkpoint, with the moments that all ranks wrote together; all ranks call it."""
    laid = {t: like[i] for i, row in state["state"].items() for t in row.values() if isinstance(t, Stored)}
    if not laid:
        return state
    from rlhf_core.distributed.whole_weights import read_stored

    return read_stored(state, laid.__getitem__)


def prepare_training(
    strategy: Strategy, module: torch.nn.Module, plan: OptimizerPlan
) -> tuple[torch.nn.Module, RunOptimizer]:
    """Prepare a module that is to be trained, and make its optimizer; all ranks call it."""
    if isinstance(strategy, OptimizerOwner):
        return strategy.prepare_training(module, plan)
    prepared = strategy.prepare(module)
    if isinstance(strategy, ShardedLoading):
        read_weights(prepared, strategy.weights_device)
    return prepared, TorchOptimizer(strategy, prepared, plan)


def optimizer_of(strategy: Strategy, prepared: torch.nn.Module, plan: OptimizerPlan) -> RunOptimizer:
    """The optimizer of a module that is prepared already."""
    if isinstance(strategy, OptimizerOwner):
        raise PluginError(
            "this trainer cannot train with a strategy that makes the optimizer itself",
            why="it calls strategy.prepare(module) and gives the learner no optimizer",
            fix="let it make its learner with Learner.preparing(), or choose another strategy, such as ddp",
        )
    return TorchOptimizer(strategy, prepared, plan)
