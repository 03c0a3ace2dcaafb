"""Single process and DDP behind the Strategy protocol, both through accelerate."""

from __future__ import annotations

import contextlib
import ctypes
import os
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs, KwargsHandler

from rlhf_core.distributed.group import LocalStrategy, RankGroup
from rlhf_core.distributed.peers import RankMonitor
from rlhf_core.distributed.rank_zero import await_rank_zero
from rlhf_core.plugins.strategy_protocols import Collectives
from rlhf_core.types.errors import RlhfError

if TYPE_CHECKING:
    from rlhf_core.distributed.config import AutoStrategyConfig
    from rlhf_core.plugins.context import BuildContext


def forget_mixed_precision() -> None:
    """Undo another library's mixed precision (a TRL trainer's), which accelerate would give all later accelerators."""
    if AcceleratorState._shared_state.get("_mixed_precision") not in (None, "no"):
        AcceleratorState._reset_state()


class AcceleratedStrategy(LocalStrategy):
    """One process, or DDP over every rank that the launcher started; every rank holds everything."""

    def __init__(self, world_size: int, device: str = "auto", timeout_s: float = 600.0) -> None:
        started = int(os.environ.get("WORLD_SIZE", "1"))
        if started != world_size:
            raise RlhfError(
                f"the plan wants {world_size} processes but the launcher started {started}",
                fix="start with rlhf train --nproc N, or torchrun --nproc_per_node N",
            )
        cpu = device == "cpu" or not torch.cuda.is_available()
        handlers: list[KwargsHandler] = [
            InitProcessGroupKwargs(timeout=timedelta(seconds=timeout_s)),
            DistributedDataParallelKwargs(gradient_as_bucket_view=True),
        ]
        forget_mixed_precision()
        self.accelerator = Accelerator(cpu=cpu, mixed_precision="no", kwargs_handlers=handlers)
        super().__init__(self.accelerator.device)
        self.rank: int = self.accelerator.process_index
        self.world_size: int = self.accelerator.num_processes
        self.timeout_s = timeout_s
        if self.world_size != world_size:
            raise RlhfError(
                f"accelerate joined {self.world_size} of {world_size} processes",
                why="the process group was not initialised on every rank",
                fix="start with rlhf train --nproc N",
            )

        self.peers = RankMonitor.join(self.rank, world_size)

    @classmethod
    def from_config(cls, config: AutoStrategyConfig, ctx: BuildContext) -> AcceleratedStrategy:
        """The strategy of this process."""
        return cls(ctx.world_size, config.device, config.timeout_s)

    def prepare(self, module: torch.nn.Module) -> torch.nn.Module:
        """Move to the device and wrap in DDP when there are several ranks."""
        return self.accelerator.prepare_model(module)

    def release(self, module: torch.nn.Module) -> None:
        """Take it out of what accelerate has prepared."""
        bare, models = self.unwrap(module), self.accelerator._models
        models[:] = [other for other in models if self.unwrap(other) is not bare]

    def unwrap(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return the module under DDP, and under what compiles it."""
        module = getattr(module, "_orig_mod", module)
        return module.module if isinstance(module, torch.nn.parallel.DistributedDataParallel) else module

    def accumulate(self, module: torch.nn.Module, last: bool) -> contextlib.AbstractContextManager[None]:
        """One micro-batch; gradients are exchanged only in the last."""
        return contextlib.nullcontext() if last else self.accelerator.no_sync(module)

    def backward(self, loss: torch.Tensor) -> None:
        """Backward; DDP averages gradients, so the loss is scaled up to make them sum."""
        with self._waiting("adding gradients"):
            self.accelerator.backward(loss * self.world_size)

    def clip_grad_norm(self, module: torch.nn.Module, max_norm: float) -> float:
        """Clip the global norm; returns the norm before clipping."""
        with self._waiting("adding gradients"):  # on a GPU the first number that is read waits for them
            return super().clip_grad_norm(module, max_norm)

    def alone(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Rank 0 works; the others wait for it at the end, however long it takes."""
        return await_rank_zero(what, self.rank, self.peers, self.timeout_s)

    def new_group(self, timeout_s: float) -> Collectives:
        """Collectives of the same ranks for a second thread; all ranks call it together."""
        return RankGroup(self, timeout_s, peers=self.peers)

    def close(self) -> None:
        """Leave the process group, which is never destroyed: its destructor joins gloo's threads, with the interpreter
        lock held when DDP's reducer is the last to let go of it; a thread that needs the lock, to release the tensors
        of the last collective, then waits for ever (seen with torch 2.13).
        """
        if self.peers is not None:
            self.peers.close()
        if self.world_size > 1 and dist.is_initialized():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))
            dist.destroy_process_group()
