"""A process group of a trainer and one server's workers, made for one version of the weights and gone after it.

Both sides import this, and it needs torch alone. Names, types and shapes go through the group's store, numbers through
a broadcast of a bucket at a time. A group for each version costs milliseconds and keeps nothing that a server started
again would not know of. Every wait has a deadline; vLLM's own ``PyNcclCommunicator`` has none, so that NCCL is torch's.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

JOIN_S = 60.0
"""Seconds for a server's workers to reach the trainer, and for both to connect."""
POLL_S = 0.01
ALIGNED = 16
"""Bytes; each weight of a bucket begins at a multiple of it, so that it can be viewed in its type."""
NCCL_ENVIRONMENT = {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
"""A deadline that passes is an exception of whoever waits; torch would end the process."""

ONE_AT_A_TIME = threading.Lock()
"""Groups of several servers are made in threads, and share this process's environment."""


class GroupError(RuntimeError):
    """The other side is gone, or took too long."""


@dataclass(frozen=True)
class GroupAddress:
    """What a worker is told, as JSON."""

    backend: str
    """``gloo`` or ``nccl``."""
    host: str
    port: int
    workers: int
    seconds: float
    """Most of one wait."""
    token: str
    """Before each key of the store: a worker that comes late, to a port that is another group's now, joins nothing."""

    def to_json(self, **more: Any) -> str:
        return json.dumps({**asdict(self), **more})


class Side:
    """One process of a group. Nothing but this object refers to the group, so that ``close`` ends its connections."""

    address: GroupAddress
    _group: Any = None
    _store: Any = None

    def _broadcast(self, numbers: torch.Tensor) -> None:
        """From rank 0 to all; numbers are there, or gone from here, when it returns."""
        options: Any = dist.BroadcastOptions()
        wait = timedelta(seconds=self.address.seconds)
        options.rootRank, options.rootTensor, options.timeout = 0, 0, wait
        with _as_group_error():
            self._group.broadcast([numbers], options).wait(wait)
            if numbers.is_cuda:
                torch.cuda.current_stream(numbers.device).synchronize()

    def interrupt(self) -> None:
        """End a wait for others that are known to be gone: NCCL does not see them go, gloo does."""
        if self._group is not None and self.address.backend == "nccl":
            self._group.abort()

    def close(self) -> None:
        """Whoever waits on the other side wakes up; idempotent."""
        self.interrupt()
        self._group = self._store = None


class Sender(Side):
    """The trainer's side, rank 0.

    Args:
        host: address of this machine at which the workers reach it; nothing else is listened on.
        workers: of the server.
        seconds: most of one wait.
        device: that tensors are sent from.
    """

    def __init__(self, backend: str, host: str, workers: int, seconds: float, device: torch.device) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, 0), family=family) as listening:
            port, descriptor = int(listening.getsockname()[1]), listening.detach()
        self.address, self.device = GroupAddress(backend, host, port, workers, seconds, secrets.token_hex(8)), device
        store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
            host, port, None, True, timedelta(seconds=JOIN_S), wait_for_workers=False, master_listen_fd=descriptor
        )
        self._store = dist.PrefixStore(self.address.token, store)  # pyright: ignore[reportPrivateImportUsage]
        self._buckets = 0

    def join(self, given_up: Callable[[], bool]) -> None:
        """Wait until all workers are there.

        Raises:
            GroupError: they are not within ``JOIN_S``, or ``given_up`` says that they will not come.
        """
        ends, keys = time.monotonic() + JOIN_S, [_joined(rank + 1) for rank in range(self.address.workers)]
        while not self._store.check(keys):
            if given_up() or time.monotonic() > ends:
                where = f"{self.address.host}:{self.address.port}"
                raise GroupError(f"its workers did not come to {where} within {JOIN_S:g} s")
            time.sleep(POLL_S)
        with _as_group_error():
            self._group = _group(self._store, self.address, 0, self.address.host)

    def send(self, weights: Iterable[tuple[str, torch.Tensor]], most: int) -> int:
        """Send weights in buckets of at most ``most`` bytes, or of one larger weight; returns the bytes of them all.

        Raises:
            GroupError: a worker is gone, or took too long.
        """
        total, bucket = 0, Bucket(most, self.device)
        try:
            for name, weight in weights:
                if not bucket.fits(weight):
                    self._send(bucket)
                    bucket.empty()
                total += bucket.add(name, weight)
            self._send(bucket)
        except GroupError:
            raise
        except BaseException as error:  # a weight could not be read or gathered: nobody waits for it
            self._say({"error": f"{type(error).__name__}: {error}"})
            raise
        self._say({"end": True})
        return total

    def _send(self, bucket: Bucket) -> None:
        if bucket.rows:
            self._say({"bytes": bucket.used, "weights": bucket.rows})
            self._broadcast(bucket.numbers)

    def _say(self, header: Mapping[str, Any]) -> None:
        with _as_group_error():
            self._store.set(_header(self._buckets), json.dumps(header))
        self._buckets += 1


class Bucket:
    """Weights one after another in one tensor of ``most`` bytes, or of a larger weight alone."""

    def __init__(self, most: int, device: torch.device) -> None:
        self._most, self._bytes = most, torch.empty(most, dtype=torch.uint8, device=device)
        self.used = 0
        self.rows: list[tuple[str, str, list[int], int]] = []
        """Name, type, shape and first byte of each."""

    @property
    def numbers(self) -> torch.Tensor:
        return self._bytes[: self.used]

    def empty(self) -> None:
        self.used, self.rows = 0, []

    def fits(self, weight: torch.Tensor) -> bool:
        return not self.rows or _next_start(self.used) + weight.nbytes <= self._most

    def add(self, name: str, weight: torch.Tensor) -> int:
        """Copy a weight that fits; returns its bytes."""
        start = _next_start(self.used)
        self.used = start + weight.nbytes
        if self.used > len(self._bytes):
            self._bytes = torch.empty(self.used, dtype=torch.uint8, device=self._bytes.device)
        _view(self._bytes, weight.dtype, list(weight.shape), start).copy_(weight.detach())
        self.rows.append((name, str(weight.dtype).removeprefix("torch."), list(weight.shape), start))
        return weight.nbytes


class Receiver(Side):
    """A worker's side.

    Args:
        told: what :meth:`GroupAddress.to_json` says.
        worker: its number, from 0, among the server's.
        device: that tensors come to.
    """

    def __init__(self, told: Mapping[str, Any], worker: int, device: torch.device) -> None:
        names = GroupAddress.__dataclass_fields__
        self.address, self.device = GroupAddress(**{name: told[name] for name in names}), device
        address = self.address
        with _as_group_error():
            store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
                address.host, address.port, None, False, timedelta(seconds=JOIN_S)
            )
            self._store = dist.PrefixStore(address.token, store)  # pyright: ignore[reportPrivateImportUsage]
            self._store.set(_joined(worker + 1), "1")
            self._group = _group(self._store, address, worker + 1, own_address(address.host))
            self._store.set_timeout(timedelta(seconds=address.seconds))
        self.bytes = 0
        """Of the weights that came."""

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(Name, tensor) of every weight, in the order in which they were sent; one bucket at a time is held here.

        Raises:
            GroupError: the trainer is gone, took too long, or could not read a weight.
        """
        for number in range(1 << 62):
            with _as_group_error():
                header = json.loads(self._store.get(_header(number)))
            if "error" in header:
                raise GroupError(f"the trainer could not send all weights: {header['error']}")
            if "end" in header:
                return
            numbers = torch.empty(header["bytes"], dtype=torch.uint8, device=self.device)
            self._broadcast(numbers)
            for name, kind, shape, start in header["weights"]:
                weight = _view(numbers, getattr(torch, kind), shape, start)
                self.bytes += weight.nbytes
                yield name, weight


def own_address(other: str) -> str:
    """This machine's address at which another one reaches it; nothing is sent."""
    family, _, _, _, place = socket.getaddrinfo(other, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])


def _group(store: Any, address: GroupAddress, rank: int, own: str) -> Any:
    """torch's group over a store, apart from the process's own groups."""
    size, wait = address.workers + 1, timedelta(seconds=JOIN_S)
    if address.backend == "nccl":
        settings = dist.ProcessGroupNCCL.Options()  # pyright: ignore[reportAttributeAccessIssue]
        settings._timeout = timedelta(seconds=address.seconds)
        with _environment(NCCL_ENVIRONMENT):
            return dist.ProcessGroupNCCL(store, rank, size, settings)  # pyright: ignore[reportAttributeAccessIssue]
    kind: Any = dist.ProcessGroupGloo
    options = kind._Options()
    options._devices, options._timeout, options._threads = [kind.create_device(hostname=own)], wait, 1
    return kind(store, rank, size, options)


def _view(numbers: torch.Tensor, dtype: torch.dtype, shape: list[int], start: int) -> torch.Tensor:
    return numbers[start : start + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)


def _next_start(used: int) -> int:
    return -(-used // ALIGNED) * ALIGNED


def _joined(rank: int) -> str:
    return f"joined/{rank}"


def _header(number: int) -> str:
    return f"bucket/{number}"


@contextlib.contextmanager
def _as_group_error() -> Generator[None, None, None]:
    """torch raises several kinds of ``RuntimeError`` where the other side is gone or late."""
    try:
        yield
    except RuntimeError as error:
        raise GroupError(str(error).strip().splitlines()[0][:300]) from None


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Generator[None, None, None]:
    with ONE_AT_A_TIME:
        before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
