"""The policy's weights as files that servers read: all of them, or the adapter alone."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save

from rlhf_plugin_vllm.worker import DIGESTS, weights_in

MIB = 1 << 20


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
    """Writes each version into one folder, and removes the one before.

    Args:
        model: the policy, before a strategy wraps it.
        folder: where; None takes a temporary folder.
        bucket_mib: most MiB of a file, unless one weight is larger.
    """

    def __init__(self, model: Any, folder: Path | None, bucket_mib: int = 512) -> None:
        self.bucket = bucket_mib * MIB
        self.token = secrets.token_hex(4)
        """Of this run: labels and folders of other runs on the same servers differ."""
        self.folder = Path(tempfile.mkdtemp(prefix="rlhf-vllm-")) if folder is None else folder / f"rlhf-{self.token}"
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "token").write_text(self.token)
        self.adapter = adapter_settings(model)
        self.rank = int(self.adapter.get("r", 0))
        """Of the adapter; 0 where all weights are trained."""
        parameters = dict(model.named_parameters())
        self._frozen = {} if self.adapter else {n: p for n, p in parameters.items() if not p.requires_grad}
        self.current: Published | None = None

    def whole(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """All weights of the policy: the trained ones of a version, and those that are not trained."""
        return {**self._frozen, **tensors}

    def write(self, version: int, tensors: Mapping[str, torch.Tensor]) -> Published:
        """Write one version; the one before is removed when :meth:`keep` is called."""
        name, label = f"v{version}-{secrets.token_hex(2)}", f"{self.token}:{version}"
        path = self.folder / name
        path.mkdir()
        if not self.adapter:
            digest, size = write_buckets(path, self.whole(tensors), self.bucket)
            return Published(version, label, path, digest, size, adapter=False)
        (path / "adapter_config.json").write_text(json.dumps(self.adapter))
        data = save({_adapter_name(n): _whole(t) for n, t in tensors.items()})
        (path / "adapter_model.safetensors").write_bytes(data)
        return Published(version, label, path, hashlib.sha256(data).hexdigest(), len(data), adapter=True)

    def read(self, published: Published) -> dict[str, torch.Tensor]:
        """The weights of a version as they were written, by the names that they have in the policy."""
        if not published.adapter:
            return dict(weights_in(sorted(published.path.glob("*.safetensors"))))
        tensors = load_file(published.path / "adapter_model.safetensors")
        return {_own_name(name): tensor for name, tensor in tensors.items()}

    def keep(self, published: Published) -> None:
        """Let this version be the current one, and remove the one before."""
        older, self.current = self.current, published
        if older is not None and older.path != published.path:
            shutil.rmtree(older.path, ignore_errors=True)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def write_buckets(folder: Path, tensors: Mapping[str, torch.Tensor], most: int) -> tuple[str, int]:
    """Write weights to files of a folder, one after another, so that no more of them is copied at once.

    Args:
        folder: empty.
        tensors: on any device.
        most: bytes of a file, unless one weight is larger.

    Returns:
        (SHA-256 of the list of the files' digests, bytes of all files).
    """
    digests: dict[str, str] = {}
    size = 0
    for names in _buckets(tensors, most):
        file = folder / f"{len(digests):05}.safetensors"
        data = save({name: _whole(tensors[name]) for name in names})
        file.write_bytes(data)
        digests[file.name] = hashlib.sha256(data).hexdigest()
        size += len(data)
    listed = json.dumps(digests).encode()
    (folder / DIGESTS).write_bytes(listed)
    return hashlib.sha256(listed).hexdigest(), size


def _buckets(tensors: Mapping[str, torch.Tensor], most: int) -> Iterator[list[str]]:
    names: list[str] = []
    held = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        if names and held + size > most:
            yield names
            names, held = [], 0
        names.append(name)
        held += size
    if names:
        yield names


def adapter_settings(model: Any) -> dict[str, Any]:
    """peft's ``adapter_config.json`` of a peft model; empty for another."""
    configs = getattr(model, "peft_config", None)
    if not configs:
        return {}
    settings = configs["default"].to_dict()
    return json.loads(json.dumps({**settings, "inference_mode": True}, default=_plain))


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set | frozenset) else str(getattr(value, "value", value))


def _adapter_name(name: str) -> str:
    """As peft names them in files, without the adapter's own name."""
    return name.replace(".lora_A.default.", ".lora_A.").replace(".lora_B.default.", ".lora_B.")


def _own_name(name: str) -> str:
    """The other way."""
    return name.replace(".lora_A.", ".lora_A.default.").replace(".lora_B.", ".lora_B.default.")


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu").contiguous()
