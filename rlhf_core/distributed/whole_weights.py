"""Whole weights of a sharded module for rank 0, one tensor at a time, each gathered when it is asked for."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_parts
from torch.distributed.checkpoint.state_dict_saver import save as save_parts
from torch.distributed.tensor import DTensor

from rlhf_core.distributed.rank_zero import alone
from rlhf_core.models.tensor_files import Weights, WeightsOnDemand
from rlhf_core.plugins.strategy_protocols import Collectives, Strategy, TensorGathering
from rlhf_core.types.errors import OtherRankFailed
from rlhf_core.types.tree import Stored


def decoder_layers(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Every layer of every transformer in a module (policy and critic, say), outermost ones only.

    transformers' models name the classes of modules that are not to be split; those in a list are the layers. Embedding
    and head are left to the root: the head runs on chunks of tokens, whose number differs between ranks. So is a layer
    that shares a weight with another module: a weight is gathered with one unit only.
    """
    classes: set[str] = set()
    owners: Counter[int] = Counter()
    for part in module.modules():
        classes |= set(getattr(part, "_no_split_modules", None) or ())
        owners.update(id(p) for p in part.parameters(recurse=False))
    return [layer for layer in _outermost(module, classes) if not _shares(layer, owners)]


def _outermost(module: torch.nn.Module, classes: set[str]) -> Iterator[torch.nn.Module]:
    listed = isinstance(module, torch.nn.ModuleList)
    for child in module.children():
        if listed and type(child).__name__ in classes and next(child.parameters(), None) is not None:
            yield child
        else:
            yield from _outermost(child, classes)


def _shares(layer: torch.nn.Module, owners: Counter[int]) -> bool:
    inside = Counter(id(p) for part in layer.modules() for p in part.parameters(recurse=False))
    return any(owners[parameter] != count for parameter, count in inside.items())


def _map_leaves(tree: Any, leaf: Callable[[Any, str], Any], path: str = "") -> Any:
    if isinstance(tree, dict):
        return {k: _map_leaves(v, leaf, f"{path}/{k}" if path else str(k)) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_map_leaves(v, leaf, f"{path}/{i}") for i, v in enumerate(tree))
    return leaf(tree, path)


def take_out(tree: Any) -> tuple[Any, dict[str, DTensor]]:
    """A state without its DTensors, which are returned by the place where they stood."""
    tensors: dict[str, DTensor] = {}

    def without_tensor(value: Any, path: str) -> Any:
        if not isinstance(value, DTensor):
            return value
        tensors[path] = value
        return Stored(path)

    return _map_leaves(tree, without_tensor), tensors


def write_sharded(folder: Path, tensors: Mapping[str, DTensor]) -> None:
    """Write every rank's parts into one folder, which all ranks see; all ranks call it."""
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    with _storage(f"writing into {folder}"):
        save_parts(dict(tensors), storage_writer=writer, no_dist=not dist.is_initialized())


def read_stored(tree: Any, like: Callable[[Stored], torch.Tensor]) -> Any:
    """A state with its tensors; all ranks call it."""
    wanted: dict[Path, dict[str, torch.Tensor]] = {}

    def tensor_of(value: Any, path: str) -> Any:
        if not isinstance(value, Stored):
            return value
        assert value.folder is not None
        return wanted.setdefault(value.folder, {}).setdefault(value.name, torch.empty_like(like(value)).detach())

    filled = _map_leaves(tree, tensor_of)
    for folder, tensors in wanted.items():
        reader = HuggingFaceStorageReader(str(folder))
        with _storage(f"reading {folder}"):
            load_parts(tensors, storage_reader=reader, no_dist=not dist.is_initialized())
    return filled


@contextlib.contextmanager
def _storage(what: str) -> Generator[None, None, None]:
    """Raise the ranks' errors as ``OSError``, for torch's is no ``Exception``; ignore its warning of one process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            yield
        except CheckpointException as error:
            ranks = "; ".join(f"rank {r}: {type(e).__name__}: {e}" for r, (e, _) in sorted(error.failures.items()))
            raise OSError(f"{what} failed ({ranks})") from error


WORK = "using the whole weights"
"""What rank 0 does alone, for messages."""


def gather_weights(strategy: Strategy, module: torch.nn.Module, use: Callable[[Weights], object]) -> None:
    """Let rank 0 use the whole weights of a prepared module, or of a part of it; all ranks call it, and ``use``, called
    on rank 0 alone, calls no collective operation. With a ``TensorGathering`` strategy a weight is gathered when it is
    looked up; with any other all are gathered before.

    Raises:
        OtherRankFailed: on the other ranks, where ``use`` raised on rank 0.
    """
    if not isinstance(strategy, TensorGathering):
        weights = strategy.full_state(module)
        with alone(strategy, WORK):
            if strategy.rank == 0:
                use(weights)
        return
    state = module.state_dict(keep_vars=True)
    if strategy.rank == 0:
        with GatheredWeights(strategy, strategy, state) as weights:
            use(weights)
        return
    while isinstance(said := _said_by_rank_0(strategy), str):
        strategy.full_tensor(state[said])
    if said.error:
        raise OtherRankFailed(f"rank 0 failed while it used the whole weights: {said.error}")


def _said_by_rank_0(ranks: Collectives) -> Any:
    """The tensor that rank 0 asks for next, or :class:`Ended`, after what it does alone between two."""
    with alone(ranks, WORK):
        pass
    return ranks.gather_objects(None)[0]


class Ended(NamedTuple):
    """What rank 0 says instead of a tensor's name."""

    error: str
    """Empty where there was none."""


class ShardedWeights(WeightsOnDemand):
    """Name -> whole weight on every rank's device, in one type. Each look-up is a collective operation: all ranks look
    the same names up, in the same order."""

    def __init__(self, strategy: TensorGathering, state: Mapping[str, Any], dtype: torch.dtype | None = None) -> None:
        self._strategy, self._state, self._dtype = strategy, state, dtype

    def __getitem__(self, name: str) -> torch.Tensor:
        whole = self._strategy.full_tensor(self._state[name], self._dtype)
        assert whole is not None, "every rank gets it"
        return whole

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)

    def __contains__(self, name: object) -> bool:
        return name in self._state  # without gathering it

    def like(self, name: str) -> torch.Tensor:
        """A tensor of the weight's shape and type, without its values: nothing is gathered."""
        value = self._state[name]
        return torch.empty(self._strategy.full_shape(value), dtype=value.dtype, device="meta")


class GatheredWeights(ShardedWeights):
    """Name -> whole weight in the host's memory of rank 0, which alone looks up: keep what is needed twice."""

    def __init__(self, ranks: Collectives, strategy: TensorGathering, state: Mapping[str, Any]) -> None:
        super().__init__(strategy, state)
        self._ranks = ranks
        self._apart = False
        """Whether an exchange broke off, so that nobody knows where the other ranks are."""
        self._section = contextlib.ExitStack()

    def __getitem__(self, name: str) -> torch.Tensor:
        value = self._state[name]
        self._apart = True
        self._section.close()
        self._ranks.gather_objects(name)
        whole = self._strategy.full_tensor(value)
        self._apart = False
        self._work_alone()
        assert whole is not None, "rank 0 gets it"
        return whole

    def _work_alone(self) -> None:
        self._section.enter_context(alone(self._ranks, WORK))

    def __enter__(self) -> GatheredWeights:
        self._work_alone()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """Let the other ranks go on, or fail too; after a look-up that raised they wait until this rank ends."""
        if not self._apart:
            self._section.close()
            self._ranks.gather_objects(Ended("" if kind is None else f"{kind.__name__}: {error}"))
