"""Tensors that no rank holds whole, in a checkpoint: each rank writes its part, as many ranks as there are read them.

torch's distributed checkpoints do it, in safetensors files whose headers say where each part belongs, without pickle.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_parts
from torch.distributed.checkpoint.state_dict_saver import save as save_parts
from torch.distributed.tensor import DTensor

from rlhf_core.types.tree import Stored


def take_out(tree: Any) -> tuple[Any, dict[str, DTensor]]:
    """A state without its DTensors, which are returned by the place where they stood."""
    tensors: dict[str, DTensor] = {}

    def walk(value: Any, place: str) -> Any:
        if isinstance(value, DTensor):
            tensors[place] = value
            return Stored(place)
        if isinstance(value, dict):
            return {k: walk(v, f"{place}/{k}" if place else str(k)) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(walk(v, f"{place}/{i}") for i, v in enumerate(value))
        return value

    return walk(tree, ""), tensors


def write_sharded(folder: Path, tensors: Mapping[str, DTensor]) -> None:
    """Write every rank's parts into one folder, which all ranks see; all ranks call it.

    Raises:
        OSError: a rank could not; every rank raises it.
    """
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    with _one_process(), _failures(f"writing into {folder}"):
        save_parts(dict(tensors), storage_writer=writer, no_dist=not dist.is_initialized())


def read_stored(tree: Any, like: Callable[[Stored], torch.Tensor]) -> Any:
    """A state with its tensors; all ranks call it.

    Args:
        tree: with :class:`Stored` in it.
        like: a tensor that is laid as the one which is read is to be: of the whole shape, or a DTensor.
    """
    wanted: dict[Path, dict[str, torch.Tensor]] = {}

    def walk(value: Any) -> Any:
        if isinstance(value, Stored):
            assert value.folder is not None
            return wanted.setdefault(value.folder, {}).setdefault(value.name, torch.empty_like(like(value)).detach())
        if isinstance(value, dict):
            return {k: walk(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(map(walk, value))
        return value

    filled = walk(tree)
    for folder, tensors in wanted.items():
        reader = HuggingFaceStorageReader(str(folder))
        with _one_process(), _failures(f"reading {folder}"):
            load_parts(tensors, storage_reader=reader, no_dist=not dist.is_initialized())
    return filled


@contextlib.contextmanager
def _one_process() -> Iterator[None]:
    """torch warns that it writes from one process, or reads in one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


@contextlib.contextmanager
def _failures(what: str) -> Iterator[None]:
    """torch collects every rank's errors in one that is no ``Exception``."""
    try:
        yield
    except CheckpointException as error:
        ranks = "; ".join(f"rank {r}: {type(e).__name__}: {e}" for r, (e, _) in sorted(error.failures.items()))
        raise OSError(f"{what} failed ({ranks})") from error
