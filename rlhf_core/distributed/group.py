"""Collectives of all ranks; a second thread has a process group of its own, whose calls never meet the first one's."""

from __future__ import annotations

import contextlib
import ctypes
import pickle
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist

from rlhf_core.distributed.optimizer import read_moments
from rlhf_core.distributed.peers import RankMonitor, waiting
from rlhf_core.plugins.context import BuildContext
from rlhf_core.plugins.strategy_protocols import Collectives, GroupFactory


def new_group(strategy: Collectives, timeout_s: float, connect: bool = True) -> Collectives:
    """Collectives of the strategy's ranks for a second thread; every rank calls this at the same point.

    Args:
        strategy: the run's. Its own ``new_group`` makes the group; one that has none gets a gloo group.
        timeout_s: deadline of each collective, seconds.
        connect: whether there will be any collective; if not, no process group is made.
    """
    if connect and strategy.world_size > 1 and isinstance(strategy, GroupFactory):
        return strategy.new_group(timeout_s)
    return RankGroup(strategy, timeout_s, connect)


class GroupCollectives:
    """Plain-Python values and float64 sums over the ranks of a process group; one rank alone exchanges nothing."""

    rank: int
    world_size: int
    device: torch.device
    """Of the tensors that are exchanged."""
    timeout_s: float = 600.0
    """Deadline of each collective, seconds."""
    peers: RankMonitor | None = None
    """Where the other ranks are, for the message when one does not come; None for one process."""
    whose = ""
    """Named in the message of a wait, where it is not the run's main thread that waits."""

    def sum_over_ranks(self, values: Sequence[float]) -> list[float]:
        """Add each value over ranks (float64)."""
        if self.world_size == 1:
            return [float(v) for v in values]
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        with self._waiting(f"adding numbers{self.whose}"):
            dist.all_reduce(total, group=self._group())
            return total.tolist()

    def max_over_ranks(self, value: int) -> int:
        """Largest value over ranks."""
        return max(self.gather_objects(value))

    def gather_objects(self, value: Any) -> list[Any]:
        """Every rank's plain value, in rank order."""
        if self.world_size == 1:
            return [value]
        rows: list[Any] = [None] * self.world_size
        with self._waiting(f"exchanging values{self.whose}"):
            dist.all_gather_object(rows, value, group=self._group())
        return rows

    def exchange_objects(self, outgoing: Sequence[Any]) -> list[Any]:
        """What every rank has sent to this one, in rank order."""
        if self.world_size == 1:
            return list(outgoing)
        with self._waiting(f"sending each rank what it needs{self.whose}"):
            return all_to_all_objects(outgoing, self.rank, self.device, self._group())

    def barrier(self, what: str) -> None:
        """Wait for all ranks.

        Raises:
            DeadlineExceeded: names what was awaited and for how long.
        """
        if self.world_size == 1:
            return
        group = self._group()
        with self._waiting(what):
            if dist.get_backend(group) == "gloo":
                dist.monitored_barrier(group, timedelta(seconds=self.timeout_s))
            else:  # NCCL guesses a card by the rank otherwise, which need not be this rank's
                dist.barrier(group, device_ids=[self.device.index] if self.device.index is not None else None)

    def _waiting(self, what: str) -> contextlib.AbstractContextManager[None]:
        return waiting(what, self.rank, self.peers, self.timeout_s)

    def _group(self) -> dist.ProcessGroup | None:
        """None is the default group."""
        return None


class RankGroup(GroupCollectives):
    """A gloo process group of all ranks for a second thread.

    Args:
        strategy: the run's; its rank and world size are taken over.
        timeout_s: deadline of each collective, seconds.
        connect: whether there will be any collective; if not, no process group is made.
        peers: where the other ranks are, for the message when one does not come.
    """

    whose = " of the rollout workers"

    def __init__(
        self, strategy: Collectives, timeout_s: float, connect: bool = True, peers: RankMonitor | None = None
    ) -> None:
        self.peers, self.device = peers, torch.device("cpu")
        self.rank, self.world_size, self.timeout_s = strategy.rank, strategy.world_size, timeout_s
        self.group: Any = None
        if connect and self.world_size > 1:
            self.group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
            # never destroyed, for the reason that AcceleratedStrategy.close gives
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.group))

    def gathered(self, module: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
        """Nothing to gather: the second thread samples from a whole copy."""
        return contextlib.nullcontext()

    def _group(self) -> dist.ProcessGroup | None:
        assert self.group is not None, "made with connect=False: the default group belongs to the first thread"
        return self.group


def all_to_all_objects(
    outgoing: Sequence[Any], rank: int, device: torch.device | str, group: dist.ProcessGroup | None = None
) -> list[Any]:
    """Send one value to each rank, and return what each has sent to this one; all ranks call it together.

    Two exchanges: of sizes, then of pickled values, nothing padded. This rank's own value is returned as it is.

    Args:
        outgoing: one value for each rank.
        rank: this one.
        device: of the tensors that are exchanged: a GPU for NCCL, the CPU for gloo.
        group: of the ranks; None takes the default one.
    """
    pickled = [b"" if to == rank else pickle.dumps(value) for to, value in enumerate(outgoing)]
    sizes = [len(value) for value in pickled]
    sent_sizes = torch.tensor(sizes, dtype=torch.int64, device=device)
    received_sizes = torch.empty_like(sent_sizes)
    dist.all_to_all_single(received_sizes, sent_sizes, group=group)
    lengths: list[int] = received_sizes.tolist()
    sent = torch.frombuffer(bytearray(b"".join(pickled)), dtype=torch.uint8).to(device)
    received = torch.empty(sum(lengths), dtype=torch.uint8, device=device)
    dist.all_to_all_single(received, sent, lengths, sizes, group=group)
    data = received.cpu().numpy().tobytes()
    parts = [data[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]
    return [outgoing[rank] if sender == rank else pickle.loads(part) for sender, part in enumerate(parts)]


class OnRanks(GroupCollectives):
    """Exchanges between ranks, with their deadlines and messages, are those of ``ddp``.

    Args:
        ranks: the core's strategy for as many ranks.
    """

    sharded = True
    read_moments = staticmethod(read_moments)

    def __init__(self, ranks: Any) -> None:
        self.ranks = ranks
        self.rank, self.world_size, self.device = ranks.rank, ranks.world_size, ranks.device
        self.peers, self.timeout_s = ranks.peers, ranks.timeout_s
        self._own_group = not dist.is_initialized()
        if self._own_group:  # one process has no launcher's store
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # pyright: ignore[reportPrivateImportUsage]

    @staticmethod
    def ranks_of(ctx: BuildContext, timeout_s: float, device: str) -> Any:
        """The core's strategy of this process.

        Args:
            ctx: of the run.
            timeout_s: deadline of each exchange, seconds.
            device: ``auto``, ``cpu`` or ``cuda``.
        """
        ddp = ctx.registry.load("strategy", "ddp").model_validate({"timeout_s": timeout_s, "device": device})
        return ddp.build(ctx)

    def alone(self, what: str) -> AbstractContextManager[None]:
        """Rank 0 works; the others wait for it at the end."""
        return self.ranks.alone(what)

    def new_group(self, timeout_s: float) -> Any:
        """Collectives of the same ranks for a second thread."""
        return self.ranks.new_group(timeout_s)

    def close(self) -> None:
        """Leave the process group."""
        self.ranks.close()
        if self._own_group:
            dist.destroy_process_group()
