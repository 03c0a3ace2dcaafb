"""Weights by name, gathered or computed one by one, and safetensors files written so, byte for byte as its library."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch

from rlhf_core.types.errors import ModelError, TrainingDiverged

Weights = Mapping[str, torch.Tensor]


class WeightsOnDemand(Mapping[str, torch.Tensor]):
    """Name -> whole weight, which is gathered when it is looked up."""

    @abstractmethod
    def like(self, name: str) -> torch.Tensor:
        """A tensor of the weight's shape and type, without its values: nothing is gathered."""


class ComputedWeights(Mapping[str, torch.Tensor]):
    """Name -> weight that is computed when it is looked up."""

    def __init__(
        self, values: Mapping[str, Callable[[], torch.Tensor]], shapes: Mapping[str, torch.Tensor] | None
    ) -> None:
        self._values, self.shapes = values, shapes

    @classmethod
    def of(cls, weights: Weights, stored: Mapping[str, str], value: Callable[[str, str], torch.Tensor]) -> Self:
        """Weights each of which has the shape and the type of one that is there."""
        shapes = {name: like(weights, key) for name, key in stored.items()} if is_lazy(weights) else None
        return cls({name: partial(value, name, key) for name, key in stored.items()}, shapes)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._values[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values


def is_lazy(weights: Weights) -> bool:
    """Whether a weight is gathered when it is looked up, so that looking up all of them would hold the model whole."""
    return isinstance(weights, WeightsOnDemand) or (isinstance(weights, ComputedWeights) and weights.shapes is not None)


def like(weights: Weights, name: str) -> torch.Tensor:
    """A tensor of a weight's shape and type, not gathered for it where that can be avoided."""
    if isinstance(weights, WeightsOnDemand):
        return weights.like(name)
    if isinstance(weights, ComputedWeights) and weights.shapes is not None:
        return weights.shapes[name]
    return weights[name]


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinity: one pass, and no copy but of types of one byte."""
    if not tensor.is_floating_point() or tensor.is_meta or not tensor.numel():
        return True
    values = tensor.detach() if tensor.element_size() > 1 else tensor.detach().float()
    return bool(torch.isfinite(torch.stack(torch.aminmax(values))).all())


def check_finite(weights: Weights, path: str) -> None:
    """Refuse loaded weights with NaN or infinity, which fused kernels may hide in fluent text.

    Args:
        weights: name -> tensor of any shape, such as a module's ``state_dict()``.
        path: what they were loaded from.

    Raises:
        ModelError: names the first such weight.
    """
    for name, tensor in weights.items():
        if not is_finite(tensor):
            raise ModelError(
                f"the weight '{name}' of '{path}' holds NaN or infinity",
                why="the file is damaged, or the training that wrote it had diverged",
                fix="copy or download it again, or take an earlier checkpoint",
            )


def load_tensors(file: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a safetensors file, on the CPU; refused as by :func:`check_finite`."""
    from safetensors.torch import load_file

    tensors = load_file(str(file))
    check_finite(tensors, str(file))
    return tensors


def finite(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that is going to be written.

    Raises:
        TrainingDiverged: it holds NaN or infinity.
    """
    if not is_finite(tensor):
        raise TrainingDiverged(
            f"the weight '{name}' holds NaN or infinity, and is not saved",
            why="the last update made it so: its gradient was finite, the step it took was not",
            fix="lower trainer.optimizer.learning_rate; the last checkpoint is finite",
        )
    return tensor


TYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.complex64: "C64",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.uint64: "U64",
}
"""In the order of the format's alignment; in a file the last ones come first, and names in order within a type."""
_RANK = {dtype: place for place, dtype in enumerate(TYPES)}
SHARD_BYTES = 50 * 10**9
"""Of tensors in a file of a model, at most, as in transformers; a larger tensor has a file of its own."""


@dataclass(frozen=True)
class TensorEntry:
    """A tensor that is going to be written."""

    name: str
    like: torch.Tensor
    """Of its shape and type; its values are not looked at."""
    value: Callable[[], torch.Tensor]

    @property
    def bytes(self) -> int:
        """Its size in the file."""
        return self.like.numel() * self.like.element_size()


def entries(weights: Mapping[str, torch.Tensor], names: Iterable[str]) -> list[TensorEntry]:
    """Some of the weights, each looked up when it is written."""
    return [TensorEntry(name, like(weights, name), lambda name=name: weights[name]) for name in names]


def write_tensors(file: Path, tensors: Iterable[TensorEntry], metadata: Mapping[str, str] | None = None) -> None:
    """Write one file; of the values one is in memory at a time."""
    ordered = sorted(tensors, key=lambda tensor: (-_RANK[tensor.like.dtype], tensor.name.encode()))
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for tensor in ordered:
        begin, end = end, end + tensor.bytes
        kind, shape = TYPES[tensor.like.dtype], list(tensor.like.shape)
        header[tensor.name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as target:
        target.write(len(text).to_bytes(8, "little") + text)
        for tensor in ordered:
            value = finite(tensor.name, tensor.value()).detach().cpu().contiguous()
            if value.shape != tensor.like.shape or value.dtype != tensor.like.dtype:
                raise ValueError(
                    f"'{tensor.name}' was to be {list(tensor.like.shape)} of {tensor.like.dtype}, "
                    f"and is {list(value.shape)} of {value.dtype}"
                )
            target.write(value.reshape(-1).view(torch.uint8).numpy().data)


def save_named(weights: Mapping[str, torch.Tensor], names: Iterable[str], file: Path) -> None:
    """Write some weights into one file."""
    write_tensors(file, entries(weights, names))


def write_model_files(folder: Path, tensors: Sequence[TensorEntry], shard_bytes: int = SHARD_BYTES) -> None:
    """Write a model's weights as transformers reads them: ``model.safetensors``, or several files and their index."""
    from huggingface_hub import split_state_dict_into_shards_factory

    by_name = {tensor.name: tensor for tensor in tensors}
    split = split_state_dict_into_shards_factory(
        by_name,
        get_storage_size=lambda tensor: tensor.bytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=shard_bytes,
    )
    for file, names in split.filename_to_tensors.items():
        write_tensors(folder / file, [by_name[name] for name in names], {"format": "pt"})
    if split.is_sharded:
        parameters = sum(tensor.like.numel() for tensor in tensors)
        metadata = {"total_parameters": parameters, **split.metadata}
        text = json.dumps({"metadata": metadata, "weight_map": split.tensor_to_filename}, indent=2, sort_keys=True)
        (folder / "model.safetensors.index.json").write_text(text + "\n", encoding="utf-8")
