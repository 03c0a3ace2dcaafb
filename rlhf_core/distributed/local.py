"""A strategy for work of one process alone, in a run of any size (reward models of a command or a study, tests)."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import torch

from rlhf_core.distributed.group import GroupCollectives, RankGroup
from rlhf_core.plugins.strategy_protocols import Collectives


class LocalStrategy(GroupCollectives):
    """One process, no communication."""

    rank: int = 0
    world_size: int = 1
    sharded = False

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)

    def prepare(self, module: torch.nn.Module) -> torch.nn.Module:
        """Move to the device."""
        return module.to(self.device)

    def unwrap(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module itself."""
        return module

    def gathered(self, module: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
        """Weights are whole on every rank anyway."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def accumulate(self, module: torch.nn.Module, last: bool) -> Generator[None, None, None]:
        """Nothing to synchronise."""
        yield

    def backward(self, loss: torch.Tensor) -> None:
        """Plain backward."""
        loss.backward()

    def clip_grad_norm(self, module: torch.nn.Module, max_norm: float) -> float:
        """Clip the global norm; returns the norm before clipping."""
        return float(torch.nn.utils.clip_grad_norm_([p for p in module.parameters() if p.grad is not None], max_norm))

    def full_state(self, module: torch.nn.Module) -> dict[str, torch.Tensor]:
        """The state dict, which every rank holds whole."""
        return self.unwrap(module).state_dict()

    def optimizer_state(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The optimizer's own state; the same on every rank."""
        return optimizer.state_dict()

    def load_optimizer_state(
        self, module: torch.nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]
    ) -> None:
        """Restore it."""
        optimizer.load_state_dict(state)

    def new_group(self, timeout_s: float) -> Collectives:
        """No other rank to exchange values with."""
        return RankGroup(self, timeout_s, connect=False)
