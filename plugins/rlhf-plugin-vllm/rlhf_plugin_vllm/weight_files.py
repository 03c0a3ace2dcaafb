"""The policy's weights as files that servers read: all of them, or the adapter alone."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save


@dataclass(frozen=True)
class Published:
    """One version of the weights, on disk until the next."""

    version: int
    label: str
    """What servers call it; no other run has the same."""
    path: Path
    """A file with all weights, or a folder with an adapter."""
    digest: str
    """SHA-256 of the file with the weights."""
    size: int
    """Its bytes."""
    adapter: bool


class WeightFiles:
    """Writes each version into one folder, and removes the one before.

    Args:
        model: the policy, before a strategy wraps it.
        folder: where; None takes a temporary folder.
    """

    def __init__(self, model: Any, folder: Path | None) -> None:
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
        if self.adapter:
            path = self.folder / name
            path.mkdir()
            (path / "adapter_config.json").write_text(json.dumps(self.adapter))
            data = save({_adapter_name(n): _whole(t) for n, t in tensors.items()})
            (path / "adapter_model.safetensors").write_bytes(data)
        else:
            path = self.folder / f"{name}.safetensors"
            data = save({n: _whole(t) for n, t in self.whole(tensors).items()})
            path.write_bytes(data)
        return Published(version, label, path, hashlib.sha256(data).hexdigest(), len(data), bool(self.adapter))

    def read(self, published: Published) -> dict[str, torch.Tensor]:
        """The weights of a version as they were written, by the names that they have in the policy."""
        if not published.adapter:
            return load_file(published.path)
        tensors = load_file(published.path / "adapter_model.safetensors")
        return {_own_name(name): tensor for name, tensor in tensors.items()}

    def keep(self, published: Published) -> None:
        """Let this version be the current one, and remove the one before."""
        older, self.current = self.current, published
        if older is not None and older.path != published.path:
            _remove(older.path)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


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


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
