"""State trees on disk without pickle: tensors in safetensors, everything else in JSON.

A tree is built of dict (keys: strings or integers), list, tuple, None, bool, int, float, str, numpy arrays and torch
tensors, and of :class:`Stored` in place of tensors that are written elsewhere.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

SHARDED = "sharded"
"""Folder, beside a tree, of the tensors that :class:`Stored` stands for."""


@dataclass(frozen=True)
class Stored:
    """Stands in a tree for a tensor whose parts lie in files of their own (``distributed.whole_weights``)."""

    name: str
    folder: Path | None = None
    """Where the parts are; None while it is written."""


def save_tree(folder: Path, name: str, tree: Any) -> None:
    """Write ``name.json`` and ``name.safetensors`` into ``folder``."""
    tensors: dict[str, torch.Tensor] = {}
    skeleton = _encode(tree, tensors)
    (folder / f"{name}.json").write_text(json.dumps(skeleton))
    save_file(tensors, str(folder / f"{name}.safetensors"))


def load_tree(folder: Path, name: str) -> Any:
    """Read back what :func:`save_tree` wrote, types and bits included."""
    tensors = load_file(str(folder / f"{name}.safetensors"))
    return _decode(json.loads((folder / f"{name}.json").read_text()), tensors, folder / SHARDED)


def foreign(value: Any) -> str | None:
    """Class name of the first thing in a tree that cannot be saved; None if all of it can."""
    if value is None or isinstance(value, (bool, int, float, str, torch.Tensor, np.ndarray, np.generic)):
        return None
    if isinstance(value, dict):
        return next((name for pair in value.items() for name in map(foreign, pair) if name), None)
    if isinstance(value, (list, tuple)):
        return next((name for name in map(foreign, value) if name), None)
    return type(value).__name__


def same(one: Any, other: Any) -> bool:
    """Whether two trees are equal, bit for bit."""
    tensors: list[dict[str, torch.Tensor]] = [{}, {}]
    if _encode(one, tensors[0]) != _encode(other, tensors[1]):
        return False
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(*(leaves.values() for leaves in tensors)))


def _encode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, (torch.Tensor, np.ndarray)):
        key = f"t{len(tensors)}"
        is_array = isinstance(value, np.ndarray)
        tensor = torch.from_numpy(np.require(value, requirements=["C", "W"])) if is_array else value
        tensors[key] = tensor.detach().cpu().clone().contiguous()
        return {"array" if is_array else "tensor": key}
    if isinstance(value, Stored):
        return {"stored": value.name}
    if isinstance(value, dict):
        return {"dict": [[_encode(k, tensors), _encode(v, tensors)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return {"tuple" if isinstance(value, tuple) else "list": [_encode(v, tensors) for v in value]}
    if isinstance(value, np.generic):
        return _encode(value.item(), tensors)
    raise TypeError(f"cannot checkpoint a {type(value).__name__}; use plain values, arrays or tensors")


def _decode(node: Any, tensors: dict[str, torch.Tensor], sharded: Path) -> Any:
    if not isinstance(node, dict):
        return node
    ((tag, body),) = node.items()
    if tag == "float":
        return float.fromhex(body)
    if tag == "tensor":
        return tensors[body]
    if tag == "array":
        return tensors[body].numpy()
    if tag == "stored":
        return Stored(body, sharded)
    if tag == "dict":
        return {_decode(k, tensors, sharded): _decode(v, tensors, sharded) for k, v in body}
    items = [_decode(v, tensors, sharded) for v in body]
    return tuple(items) if tag == "tuple" else items
