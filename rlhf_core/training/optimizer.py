"""The optimizer's settings as a plan: which parameters learn alike."""

from __future__ import annotations

import torch

from rlhf_core.distributed.optimizer import prepare_training
from rlhf_core.models.slices import has_meta_weights
from rlhf_core.plugins.strategy_protocols import OptimizerGroup, OptimizerPlan, RunOptimizer, Strategy
from rlhf_core.training.config import OptimizerSettings
from rlhf_core.training.forward_check import try_transformer


def plan_optimizer(
    module: torch.nn.Module,
    settings: OptimizerSettings,
    critic: torch.nn.Module | None = None,
    critic_rate: float | None = None,
) -> OptimizerPlan:
    """Groups of the trainable parameters, as the optimizer wants them; a critic has its own rate and schedule."""
    of_critic = set() if critic is None else set(critic.parameters())
    parts = settings.parts(module)
    groups: list[OptimizerGroup] = []
    for rate, is_critic in ((settings.learning_rate, False), (critic_rate or settings.learning_rate, True)):
        trained = [n for n, p in module.named_parameters() if p.requires_grad and (p in of_critic) is is_critic]
        for part in sorted({parts[name] for name in trained}):
            names = tuple(name for name in trained if parts[name] == part)
            decay = 0.0 if part == "vector" else settings.weight_decay
            groups.append(OptimizerGroup(names, rate, decay, is_critic, part))
    return OptimizerPlan(tuple(groups), settings.make)


def prepare_to_learn(
    strategy: Strategy,
    module: torch.nn.Module,
    settings: OptimizerSettings,
    critic: torch.nn.Module | None = None,
    critic_rate: float | None = None,
    *,
    path: str = "",
) -> tuple[torch.nn.Module, RunOptimizer]:
    """Let the strategy prepare a module and make its optimizer; ``path`` names one that gets its weights only now."""
    untried = path and has_meta_weights(module)
    prepared, optimizer = prepare_training(strategy, module, plan_optimizer(module, settings, critic, critic_rate))
    if untried:
        try_transformer(strategy, prepared, path)
    return prepared, optimizer
