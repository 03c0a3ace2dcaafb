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
    """AdamW over the trainable parameters, weight decay on matrices only; a critic has its own rate and schedule."""
    of_critic = set() if critic is None else set(critic.parameters())
    groups: list[OptimizerGroup] = []
    for rate, is_critic in ((settings.learning_rate, False), (critic_rate or settings.learning_rate, True)):
        trained = [(n, p) for n, p in module.named_parameters() if p.requires_grad and (p in of_critic) is is_critic]
        matrices = tuple(n for n, p in trained if p.ndim >= 2)
        others = tuple(n for n, p in trained if p.ndim < 2)
        groups += [
            OptimizerGroup(names, rate, decay, is_critic)
            for names, decay in ((matrices, settings.weight_decay), (others, 0.0))
            if names
        ]
    return OptimizerPlan(tuple(groups), settings.learning_rate, settings.betas, settings.eps)


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
