"""The policy's weights as files that servers read: all of them, or the adapter alone."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save

from rlhf_core.config import RlhfError
from rlhf_core.models import ModelError
from rlhf_core.models.adapters import plain_name
from rlhf_core.models.four_bits import dequantized
from rlhf_core.models.save import ADAPTER, merged_weights
from rlhf_plugin_vllm.checkpoint_names import CheckpointNames, JoinedWeights
from rlhf_plugin_vllm.sync_folder import SyncFolder, make_sync_folder
from rlhf_plugin_vllm.worker import DIGESTS

MIB = 1 << 20
IN_USE = "in-use"
"""Folder with a file for each rank: the version that its servers have."""


@dataclass(frozen=True)
class Published:
    """One version of the weights, on disk until the next."""

    version: int
    label: str
    """What servers call it; no other run has the same."""
    path: Path
    """A folder: files with all weights, or an adapter."""
    digest: str
    """SHA-256 of the list of the files' digests, or of the file with the adapter's weights."""
    size: int
    """Bytes of the weights' files."""
    adapter: bool


class WeightFiles:
    """Writes each version into one folder, and removes those that nobody needs any more."""

    def __init__(
        self,
        model: Any,
        folder: Path | None,
        bucket_mib: int = 512,
        folders: SyncFolder | None = None,
        *,
        hashed: bool = True,
    ) -> None:
        self.bucket, self._hashed = bucket_mib * MIB, hashed
        self.dtype: torch.dtype | None = None
        """That servers hold all weights in; None where that is not known, and each is written in its own."""
        self.sync_folder = make_sync_folder(folder) if folders is None else folders
        self.token, self.folder, self.own = self.sync_folder.token, self.sync_folder.folder, self.sync_folder.own
        settings = adapter_settings(model)
        self.folded = bool(settings.get("target_parameters"))
        """Adapters of fused experts are folded into weights: vLLM takes one for each layer of an expert, peft has one
        for a tensor of all."""
        self.adapter = {} if self.folded else settings
        if self.folded and self.sync_folder.shared:
            raise ModelError(
                f"adapters of fused experts ({', '.join(settings['target_parameters'])}) cannot be sent to vLLM",
                why="they are folded into the policy's weights, which this strategy divides among ranks",
                fix="--set strategy=ddp, or --set rollout=native",
            )
        self._model = model
        self.names = CheckpointNames(model)
        self.rank = int(self.adapter.get("r", 0))
        """Of the adapter; 0 where all weights are sent."""
        parameters = dict(model.named_parameters())
        replicated = {} if self.adapter or self.sync_folder.shared else parameters
        self._frozen = {n: p for n, p in replicated.items() if not p.requires_grad}
        written = {n: p for n, p in parameters.items() if p.requires_grad or not self.adapter}
        if self.folded:
            written = {plain_name(n): p for n, p in parameters.items() if ".lora_" not in n}
        self._sizes = {n: unpacked_bytes(p) for n, p in written.items()}
        """Bytes of each weight that a version of this policy consists of."""
        self._writes = 0
        self._written: list[Published] = []
        """Versions that are there, oldest first."""
        self.current: Published | None = None
        if self.sync_folder.shared:
            self._say_in_use(-1)

    def all_weights(self, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        """All weights of the policy: a version's trained ones, and those that are not trained, or the sums of both;
        none is looked up."""
        chained: Any = ChainMap[str, Any](dict(self._frozen), tensors) if self._frozen else tensors  # pyright: ignore[reportArgumentType]
        return merged_weights(self._model, dequantized(self._model, chained)) if self.folded else chained

    def write(self, version: int, tensors: Mapping[str, torch.Tensor]) -> Published:
        self._remove_unneeded()
        self._writes += 1
        path = self.folder / f"v{version}-{self._writes}"
        try:
            path.mkdir()
            digest, size = self._write_adapter(path, tensors) if self.adapter else self._write_all(path, tensors)
        except OSError as error:
            shutil.rmtree(path, ignore_errors=True)
            raise RlhfError(
                f"version {version} of the weights could not be written to '{self.folder}'",
                why=str(error),
                fix="--set rollout.sync_dir=FOLDER, one with room for two versions",
            ) from error
        label = f"{self.token}:{version}"
        self._written.append(Published(version, label, path, digest, size, adapter=bool(self.adapter)))
        return self._written[-1]

    def _write_all(self, path: Path, tensors: Mapping[str, torch.Tensor]) -> tuple[str, int]:
        if self.sync_folder.shared:
            return self._write_buckets(path, tensors, self._sizes)
        if self.folded:
            (path / ADAPTER).mkdir()
            data = save({name: _full(tensor) for name, tensor in tensors.items()})
            (path / ADAPTER / "adapter_model.safetensors").write_bytes(data)
        sizes = self._sizes if self.folded else None
        return self._write_buckets(path, self.all_weights(tensors), sizes)

    def _write_buckets(
        self, path: Path, weights: Mapping[str, torch.Tensor], sizes: Mapping[str, int] | None
    ) -> tuple[str, int]:
        split, dtype = self.names.split, self.dtype
        return write_buckets(path, weights, self.bucket, sizes, split, dtype=dtype, hashed=self._hashed)

    def _write_adapter(self, path: Path, tensors: Mapping[str, torch.Tensor]) -> tuple[str, int]:
        (path / "adapter_config.json").write_text(json.dumps(self.adapter))
        names = self._sizes if self.sync_folder.shared else tensors
        data = save({_adapter_name(name): _full(tensors[name]) for name in names})
        (path / "adapter_model.safetensors").write_bytes(data)
        return hashlib.sha256(data).hexdigest(), len(data)

    def read(self, published: Published) -> Mapping[str, torch.Tensor]:
        """The weights of a version as they were written, by the names that they have in the policy; the trained ones
        of one that was folded."""
        if self.folded:
            return StoredWeights((published.path / ADAPTER).glob("*.safetensors"))
        stored = StoredWeights(published.path.glob("*.safetensors"), _model_name if published.adapter else str)
        return stored if published.adapter else JoinedWeights(stored, self.names)

    def keep(self, published: Published) -> None:
        """Let this version be the current one; no earlier one is needed by this rank."""
        self.current = published
        if self.sync_folder.shared:
            self._say_in_use(published.version)
            return
        for older in self._written:
            if older.path != published.path:
                shutil.rmtree(older.path, ignore_errors=True)
        self._written = [written for written in self._written if written.path == published.path]

    def _say_in_use(self, version: int) -> None:
        """Tell rank 0 which versions this rank no longer reads; it may be at work in another thread, or far ahead."""
        folder = self.folder / IN_USE
        folder.mkdir(exist_ok=True)
        part = folder / f".{self.sync_folder.rank}"
        part.write_text(str(version))
        os.replace(part, folder / str(self.sync_folder.rank))

    def _remove_unneeded(self) -> None:
        """Of versions for all ranks, those before the oldest that one of them has."""
        if not self.sync_folder.shared:
            return
        needed = min((int(file.read_text()) for file in (self.folder / IN_USE).glob("[0-9]*")), default=-1)
        for older in [p for p in self._written if p.version < needed]:
            shutil.rmtree(older.path, ignore_errors=True)
            self._written.remove(older)

    def close(self) -> None:
        self.sync_folder.remove()


class StoredWeights(Mapping[str, torch.Tensor]):
    """Weights in safetensors files, each read when it is looked up."""

    def __init__(self, files: Iterable[Path], own_name: Callable[[str], str] = str) -> None:
        self._stored: dict[str, tuple[Path, str]] = {}
        for file in sorted(files):
            with safe_open(str(file), "pt") as tensors:
                self._stored |= {own_name(name): (file, name) for name in tensors.keys()}  # noqa: SIM118

    def __getitem__(self, name: str) -> torch.Tensor:
        file, stored = self._stored[name]
        with safe_open(str(file), "pt") as tensors:
            return tensors.get_tensor(stored)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def __contains__(self, name: object) -> bool:
        return name in self._stored  # without reading it


def write_buckets(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    most: int,
    sizes: Mapping[str, int] | None = None,
    split: Callable[[str, torch.Tensor], Mapping[str, torch.Tensor]] = lambda name, weight: {name: weight},
    *,
    dtype: torch.dtype | None = None,
    hashed: bool = True,
) -> tuple[str, int]:
    """Write weights to files of at most ``most`` bytes, or of one larger weight; ``sizes`` None looks tensors up twice.
    ``split`` gives what is written of a weight, in ``dtype`` where that is less. Returns the SHA-256 of the files'
    digests, which :func:`checked_files` needs ``hashed``, and the bytes."""
    digests: dict[str, str] = {}
    size = 0
    byte_counts = {name: t.numel() * t.element_size() for name, t in tensors.items()} if sizes is None else sizes
    for names in _buckets(byte_counts, most):
        file = folder / f"{len(digests):05}.safetensors"
        data = save({stored: _full(w, dtype) for name in names for stored, w in split(name, tensors[name]).items()})
        file.write_bytes(data)
        digests[file.name] = hashlib.sha256(data).hexdigest() if hashed else ""
        size += len(data)
    listed = json.dumps(digests).encode()
    (folder / DIGESTS).write_bytes(listed)
    return hashlib.sha256(listed).hexdigest(), size


def _buckets(sizes: Mapping[str, int], most: int) -> Iterator[list[str]]:
    names: list[str] = []
    total = 0
    for name, size in sizes.items():
        if names and total + size > most:
            yield names
            names, total = [], 0
        names.append(name)
        total += size
    if names:
        yield names


def adapter_settings(model: Any) -> dict[str, Any]:
    """peft's ``adapter_config.json`` of a peft model; empty for another."""
    configs = getattr(model, "peft_config", None)
    if not configs:
        return {}
    settings = configs["default"].to_dict()
    return json.loads(json.dumps({**settings, "inference_mode": True}, default=_plain))


def unpacked_bytes(weight: Any) -> int:
    """Of a weight; of one of 4 bits, of the numbers that it stands for."""
    numbers = getattr(weight, "quant_state", weight)
    return math.prod(numbers.shape) * numbers.dtype.itemsize


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set | frozenset) else str(getattr(value, "value", value))


def _adapter_name(name: str) -> str:
    """As peft names them in files, without the adapter's own name."""
    return name.replace(".lora_A.default.", ".lora_A.").replace(".lora_B.default.", ".lora_B.")


def _model_name(name: str) -> str:
    return name.replace(".lora_A.", ".lora_A.default.").replace(".lora_B.", ".lora_B.default.")


def _full(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    narrower = dtype is not None and tensor.is_floating_point() and dtype.itemsize < tensor.dtype.itemsize
    return tensor.detach().to(dtype if narrower else tensor.dtype).to("cpu").contiguous()
