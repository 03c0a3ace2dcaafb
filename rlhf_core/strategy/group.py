"""Collectives of a second thread, in a process group of its own, so that they never meet those of the first."""

from __future__ import annotations

import contextlib
import ctypes
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from rlhf_core.protocols import Strategy


class RankGroup:
    """What sampling needs of a strategy; every rank makes one, at the same point.

    Args:
        strategy: the run's.
        timeout_s: deadline of each collective.
        connect: whether there will be any; without, a process group is not made.
    """

    def __init__(self, strategy: Strategy, timeout_s: float, connect: bool) -> None:
        self.rank, self.world_size, self.group = strategy.rank, strategy.world_size, None
        if connect and self.world_size > 1:
            self.group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
            # never destroyed, for the reason that AcceleratedStrategy.close gives
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.group))

    def gathered(self, module: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
        """Nothing to gather: what is sampled from is a whole copy."""
        return contextlib.nullcontext()

    def gather_objects(self, value: Any) -> list[Any]:
        """Every rank's plain value, in rank order."""
        if self.world_size == 1:
            return [value]
        assert self.group is not None, "the default group is the learner's"
        rows: list[Any] = [None] * self.world_size
        dist.all_gather_object(rows, value, group=self.group)
        return rows

    def max_over_ranks(self, value: int) -> int:
        """Largest value over ranks."""
        return max(self.gather_objects(value))
