"""Collectives of all ranks, for each thread in a process group of its own; and the strategy of one process alone."""

from __future__ import annotations

import contextlib
import ctypes
import pickle
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from rlhf_core.distributed.optimizer import read_moments
from rlhf_core.distributed.peers import RankMonitor, waiting
from rlhf_core.plugins.context import BuildContext
from rlhf_core.plugins.strategy_protocols import Collectives, GroupFactory
from rlhf_core.types.errors import EngineUnavailable, OtherRankFailed, error_text


def new_group(strategy: Collectives, timeout_s: float, connect: bool = True) -> Collectives:
    """Collectives of all ranks for a second thread, gloo's by default; every rank calls this at the same point."""
    if connect and strategy.world_size > 1 and isinstance(strategy, GroupFactory):
        return strategy.new_group(timeout_s)
    return RankGroup(strategy, timeout_s, connect)


class GroupCollectives:
    """Plain-Python values and float64 sums over the ranks of a process group; one rank alone exchanges nothing."""

    rank: int
    world_size: int
    device: torch.device
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
        """Wait for all ranks."""
        if self.world_size == 1:
            return
        group = self._group()
        with self._waiting(what):
            if dist.get_backend(group) == "gloo":
                dist.monitored_barrier(group, timedelta(seconds=self.timeout_s))
            else:  # NCCL guesses a card by the rank otherwise, which need not be this rank's
                dist.barrier(group, device_ids=[self.device.index] if self.device.index is not None else None)

    def _waiting(self, what: str) -> contextlib.AbstractContextManager[None]:
        if self.world_size == 1:
            return contextlib.nullcontext()
        return waiting(what, self.rank, self.peers, self.timeout_s)

    def _group(self) -> dist.ProcessGroup | None:
        return None


class RankGroup(GroupCollectives):
    """A gloo process group of all ranks for a second thread."""

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

    def _group(self) -> dist.ProcessGroup | None:
        assert self.group is not None, "made with connect=False: the default group belongs to the first thread"
        return self.group


def all_to_all_objects(
    outgoing: Sequence[Any], rank: int, device: torch.device | str, group: dist.ProcessGroup | None = None
) -> list[Any]:
    """What each rank has sent to this one, of one value for each rank: sizes first, then pickled values, unpadded."""
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


class DelegatingCollectives(GroupCollectives):
    """Exchanges between ranks, with their deadlines and messages, are those of ``ddp`` (``ranks``)."""

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
        """The core's strategy of this process; ``timeout_s`` is the deadline of each exchange, in seconds."""
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


K = TypeVar("K")
T = TypeVar("T")


class RankZeroSection:
    """What is computed of gathered values inside of :meth:`RankZero.section`: rank 0 has them all, the others none."""

    sent: Sequence[Any] = ()
    """One value for each rank; only those of rank 0 count."""
    received: Any = None
    """Rank 0's for this rank; there at the end of the section."""


class RankZero:
    """Brings every rank's values to rank 0, and to every rank what rank 0 makes of them.

    Example:
        shards = rank_zero.gather(lengths)  # of every rank on rank 0, [] on the others
        with rank_zero.section() as section:
            section.sent = [sum(map(sum, shards))] * world_size
        total = section.received
    """

    def __init__(self, ranks: Collectives) -> None:
        self.ranks = ranks

    def gather(self, value: T) -> list[T]:
        """Every rank's value in rank order, on rank 0; nothing on the others."""
        received = self.ranks.exchange_objects([value if to == 0 else None for to in range(self.ranks.world_size)])
        return received if self.ranks.rank == 0 else []

    @contextmanager
    def section(self) -> Generator[RankZeroSection, None, None]:
        """A section without collective operations, in which every rank computes with what it has gathered.

        Raises:
            OtherRankFailed: on the other ranks, if rank 0 leaves the section with an error.
        """
        ranks, section = self.ranks, RankZeroSection()
        outgoing: Sequence[Any] = [None] * ranks.world_size
        try:
            yield section
            if ranks.rank == 0:  # what cannot be sent fails here, where others can be told
                outgoing = [section.sent[0], *_pickled(section.sent[1:])]
        except BaseException as error:
            if ranks.rank == 0:
                failed = pickle.dumps(Failed(error_text(error)))
                ranks.exchange_objects([None, *[failed] * (ranks.world_size - 1)])
            raise
        sent = ranks.exchange_objects(outgoing)[0]
        section.received = sent if ranks.rank == 0 else pickle.loads(sent)
        if isinstance(section.received, Failed):
            raise OtherRankFailed(f"rank 0 failed: {section.received.error}")


def _pickled(values: Sequence[Any]) -> list[bytes]:
    """Each value, and what is for several ranks once."""
    pickled = {key: pickle.dumps(value) for key, value in {id(value): value for value in values}.items()}
    return [pickled[id(value)] for value in values]


class Failed(NamedTuple):
    """What rank 0 sends instead of a value that it could not compute."""

    error: str


def redistribute(ranks: Collectives, held: Mapping[K, T], needed: Sequence[Collection[K]]) -> dict[K, T]:
    """Index -> value, of the indices that this rank needs and some rank holds (one at most); all ranks call it."""
    outgoing = [{index: held[index] for index in indices if index in held} for indices in needed]
    return {index: value for part in ranks.exchange_objects(outgoing) for index, value in part.items()}


def borrow_dummy_sample(ranks: Collectives, value: T | None, present: Sequence[bool]) -> T | None:
    """This rank's value, or that of the first rank that has one; None where none has."""
    if all(present) or not any(present):
        return value
    lender = present.index(True)
    received = ranks.exchange_objects([value if ranks.rank == lender and not has else None for has in present])
    return value if present[ranks.rank] else received[lender]


@contextmanager
def engine_on_every_rank(comm: Collectives) -> Generator[None, None, None]:
    """A context without exchanges that all ranks leave with ``EngineUnavailable``, or none does."""
    lost: EngineUnavailable | None = None
    try:
        yield
    except EngineUnavailable as error:
        lost = error
    if not comm.max_over_ranks(int(lost is not None)):
        return
    rows = comm.gather_objects(None if lost is None else (lost.what, lost.where, lost.why, lost.fix))
    if lost is None:
        rank, (what, where, why, fix) = next((n, row) for n, row in enumerate(rows) if row is not None)
        lost = EngineUnavailable(f"rank {rank}: {what}", where=where, why=why, fix=fix)
    lost.on_every_rank = True
    raise lost


@contextmanager
def sampling_on_every_rank(
    comm: Collectives, whole_weights: Callable[[], AbstractContextManager[None]]
) -> Generator[None, None, None]:
    """A context that enters :func:`engine_on_every_rank`, and ``whole_weights`` inside it."""
    with engine_on_every_rank(comm), whole_weights():
        yield


class LocalStrategy(GroupCollectives):
    """One process without communication, in a run of any size: reward models of a command or a study, tests."""

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

    def gathered(self, module: torch.nn.Module) -> AbstractContextManager[None]:
        """Weights are whole on every rank anyway."""
        return contextlib.nullcontext()

    def accumulate(self, module: torch.nn.Module, last: bool) -> AbstractContextManager[None]:
        """Nothing to synchronise."""
        return contextlib.nullcontext()

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
