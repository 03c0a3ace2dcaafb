"""Ranks of the core's own strategy, engines of DeepSpeed: stages 1 and 2, which keep weights whole."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from rlhf_core.distributed import DelegatingCollectives, OptimizerPlan
from rlhf_plugin_deepspeed.engine import forget_ranks, import_deepspeed, make_engine
from rlhf_plugin_deepspeed.fragments import Fragments, flat_fragments
from rlhf_plugin_deepspeed.optimizer import ZeroOptimizer

if TYPE_CHECKING:
    from rlhf_plugin_deepspeed.config import DeepSpeedConfig


class Zero(DelegatingCollectives):
    """Every rank holds a part of the moments, and in stage 2 of the gradients; DeepSpeed hooks into modules
    unwrapped."""

    def __init__(self, config: DeepSpeedConfig, ranks: Any) -> None:
        super().__init__(ranks)
        self.config = config
        self.deepspeed = import_deepspeed(self.device.type)
        self.deepspeed.init_distributed(dist_backend=dist.get_backend(), auto_mpi_discovery=False, verbose=False)
        groups = self.deepspeed.utils.groups
        if groups._WORLD_GROUP is None:  # which DeepSpeed would make with torch's own deadline
            ranks_of_all = list(range(self.world_size))
            groups._WORLD_GROUP = dist.new_group(ranks_of_all, timeout=timedelta(seconds=config.timeout_s))  # pyright: ignore[reportPrivateImportUsage]
        self._engines: dict[int, Any] = {}
        """Module -> what trains it."""
        self._optimizers: dict[int, ZeroOptimizer] = {}
        """Engine -> the run's."""
        self._active: Any = None

    def prepare_training(self, module: torch.nn.Module, plan: OptimizerPlan) -> tuple[torch.nn.Module, ZeroOptimizer]:
        """Divide the moments, and make the optimizer of the plan's groups."""
        inner = plan.optimizer(module)
        for group in inner.param_groups:
            group["fused"] = None  # DeepSpeed may move to the host what is stepped
        engine = self._engine(module, inner)
        self._engines[id(module)] = engine
        optimizer = ZeroOptimizer(self, engine, inner, self._fragments(module, plan, engine))
        self._optimizers[id(engine)] = optimizer
        return module, optimizer

    def _engine(self, module: torch.nn.Module, inner: torch.optim.Optimizer) -> Any:
        return make_engine(self.deepspeed, self.config, module, inner)

    def _fragments(self, module: torch.nn.Module, plan: OptimizerPlan, engine: Any) -> Fragments:
        return flat_fragments(module, plan, engine.optimizer, self.rank)

    def prepare(self, module: torch.nn.Module) -> torch.nn.Module:
        """Only placed: what is trained is divided by :meth:`prepare_training`."""
        return module.to(self.device)

    def release(self, module: torch.nn.Module) -> None:
        """Drop the engine with its hooks and buffers, which the module's parameters would keep."""
        engine = self._engines.pop(id(module), None)
        if engine is not None:
            self._optimizers.pop(id(engine), None)
            engine.destroy()

    def unwrap(self, module: torch.nn.Module) -> torch.nn.Module:
        return module

    def gathered(self, module: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
        """Weights are whole on every rank anyway."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def accumulate(self, module: torch.nn.Module, last: bool) -> Generator[None, None, None]:
        """One micro-batch; stage 1 adds gradients over ranks after the last, the others after each."""
        engine = self._engines.get(id(module))
        if engine is None:
            with self.ranks.accumulate(module, last):
                yield
            return
        engine.set_gradient_accumulation_boundary(last)
        engine.optimizer.clear_backward_seen_flag()
        self._active = engine
        try:
            yield
        finally:
            self._active = None

    def backward(self, loss: torch.Tensor) -> None:
        """Backward; DeepSpeed averages over ranks, so the loss is scaled up to make gradients sum."""
        if self._active is None:
            self.ranks.backward(loss)
            return
        scaled = loss * self.world_size
        # what its own forward hangs on a model's outputs: batches are no tensors
        scaled.register_hook(lambda _: self._active._backward_prologue())
        with self.ranks._waiting("adding gradients"):
            self._active.backward(scaled, scale_wrt_gas=False)
        self._optimizers[id(self._active)].micro_batch_done()

    def clip_grad_norm(self, module: torch.nn.Module, max_norm: float) -> float:
        """Of a module that is only placed; the optimizer clips those that it divides."""
        return self.ranks.clip_grad_norm(module, max_norm)

    def full_state(self, module: torch.nn.Module) -> dict[str, torch.Tensor]:
        """Every rank holds whole weights."""
        return module.state_dict()

    def optimizer_state(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Of an optimizer of a module that is only placed."""
        return optimizer.state_dict()

    def load_optimizer_state(
        self, module: torch.nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]
    ) -> None:
        optimizer.load_state_dict(state)

    def close(self) -> None:
        super().close()
        forget_ranks(self.deepspeed)
