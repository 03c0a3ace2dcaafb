"""Models without weights: built without memory, sharded, and only then read, by each rank the part that it holds."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rlhf_core.models.tensor_files import check_finite, load_tensors
from rlhf_core.types.errors import ModelError

log = logging.getLogger("rlhf.models")
STORED = "_rlhf_stored"
"""Attribute of a module: parameter's name -> :class:`Stored`."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a safetensors file."""

    file: str
    name: str
    shape: tuple[int, ...]

    def read(self, rows: tuple[slice, ...]) -> torch.Tensor:
        """A part of it; nothing else of the file is read."""
        from safetensors import safe_open

        with safe_open(self.file, "pt") as tensors:
            part = tensors.get_slice(self.name)[rows] if rows else tensors.get_tensor(self.name)
        check_finite({self.name: part}, self.file)
        return part

    def elements(self, start: int, stop: int) -> torch.Tensor:
        """Elements ``[stop - start]``, counted row by row; of the file only the rows are read that hold them."""
        if not self.shape:
            return self.read(()).reshape(1)[start:stop]
        width = math.prod(self.shape[1:])
        if start >= stop:
            return self.read((slice(0, 0),)).reshape(-1)
        first = start // width
        rows = self.read((slice(first, -(-stop // width)),)).reshape(-1)
        return rows[start - first * width : stop - first * width]


ReadElements = Callable[[int, int], torch.Tensor]


def has_meta_weights(module: torch.nn.Module) -> bool:
    """Whether parameters of a module are still to be read."""
    return any(p.is_meta for p in module.parameters())


def stored_in(files: Iterable[Path]) -> dict[str, Stored]:
    """Every tensor of some safetensors files, by name."""
    from safetensors import safe_open

    stored: dict[str, Stored] = {}
    for file in files:
        with safe_open(str(file), "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                stored[name] = Stored(str(file), name, tuple(tensors.get_slice(name).get_shape()))
    return stored


def remember(module: torch.nn.Module, stored: Mapping[str, Stored]) -> list[str]:
    """Note where the parameters of a model without weights lie; persistent buffers are read now."""
    placed: dict[int, Stored] = {}
    for owner_name, owner in module.named_modules():
        for leaf, parameter in owner.named_parameters(recurse=False):
            name = f"{owner_name}.{leaf}".removeprefix(".")
            if name not in stored:
                continue
            if stored[name].shape != tuple(parameter.shape):
                raise ModelError(
                    f"the weight '{name}' does not fit the model",
                    where=stored[name].file,
                    why=f"it has the shape {list(stored[name].shape)}, and the model needs {list(parameter.shape)}",
                    fix="use the files that belong to the model's config.json",
                )
            placed[id(parameter)] = stored[name]
            if parameter.is_meta:
                owner.__dict__.setdefault(STORED, {})[leaf] = stored[name]
            else:
                with torch.no_grad():
                    parameter.copy_(stored[name].read(()))
        for leaf, buffer in owner.named_buffers(recurse=False):
            name = f"{owner_name}.{leaf}".removeprefix(".")
            if name in stored:
                buffer.copy_(stored[name].read(()))
    for owner in module.modules():  # a tied parameter that is stored under one of its names has this place in all
        known: dict[str, Stored] = owner.__dict__.get(STORED, {})
        for leaf in known:
            known[leaf] = placed.get(id(owner._parameters[leaf]), known[leaf])
    return [n for n, p in module.named_parameters() if p.is_meta and id(p) not in placed]


def load_named(module: torch.nn.Module, file: Path) -> None:
    """Give parameters a file's values by name, bit for bit; those without memory learn where theirs lie."""
    if has_meta_weights(module):
        remember(module, stored_in([file]))
    else:
        module.load_state_dict(load_tensors(file), strict=False)


def load_whole(module: torch.nn.Module, file: Path, names: set[str], what: str, fix: str) -> None:
    """:func:`load_named`, from a file of a checkpoint that must hold these names and no others."""
    checkpoint = file.parent
    if not file.is_file():
        raise ModelError(f"checkpoint '{checkpoint}' holds no {what}", where=str(file), fix=fix)
    stored = stored_in([file]).keys()
    if stored != names:
        raise ModelError(
            f"checkpoint '{checkpoint}' does not fit the {what}",
            why=f"they differ in {sorted(stored ^ names)[:3]}",
            fix="resume with the model and the settings it was made with",
        )
    load_named(module, file)


def read_weights(module: torch.nn.Module, device: torch.device) -> None:
    """Give every parameter without memory its tensor, and read what this rank holds of it."""

    def by_rows(parameter: torch.nn.Parameter, stored: Stored) -> torch.nn.Parameter:
        tensor = torch.empty_like(parameter, device=device)
        local, rows = _local_part(tensor)
        if local.numel():
            local.copy_(stored.read(rows))
        return torch.nn.Parameter(tensor, parameter.requires_grad)

    _replace(module, by_rows)


def read_elements(
    module: torch.nn.Module, make: Callable[[torch.nn.Parameter, ReadElements], torch.nn.Parameter]
) -> None:
    """Replace every parameter without memory, for a strategy that divides a module before it prepares it.

    Args:
        module: not prepared; parameters with values stay.
        make: called with each such parameter, a tied one once, and with ``read(start, stop) -> [stop - start]``, which
            reads elements counted row by row; returns the parameter that takes its place.

    Raises:
        ModelError: a parameter's value is nowhere.
    """
    _replace(module, lambda parameter, stored: make(parameter, stored.elements))


@torch.no_grad()
def _replace(module: torch.nn.Module, make: Callable[[torch.nn.Parameter, Stored], torch.nn.Parameter]) -> None:
    if not has_meta_weights(module):
        return
    new: dict[int, torch.nn.Parameter] = {}
    values: dict[int, Stored] = {}
    parameters: list[tuple[torch.nn.Module, str, torch.nn.Parameter]] = []  # keeps all, so that no id is used twice
    for owner in module.modules():
        for leaf, parameter in owner._parameters.items():
            if parameter is None or not parameter.is_meta:
                continue
            parameters.append((owner, leaf, parameter))
            if leaf in owner.__dict__.get(STORED, {}):
                values[id(parameter)] = owner.__dict__[STORED][leaf]
    for owner, leaf, parameter in parameters:
        if id(parameter) not in values:
            raise ModelError(
                f"no file holds the weight '{leaf}' of a {type(owner).__name__}",
                why="it was created without memory, and no checkpoint has its values",
                fix="use a strategy that loads the model whole, such as ddp, and report this",
            )
        if id(parameter) not in new:
            new[id(parameter)] = make(parameter, values[id(parameter)])
        owner._parameters[leaf] = new[id(parameter)]
    module._apply(lambda tensor: tensor)  # a strategy's modules look at their parameters again


def _local_part(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[slice, ...]]:
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        return tensor, ()
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tensor.to_local(), tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))


def build_without_weights(config: Any, model_class: Any, folder: Path, options: Mapping[str, Any]) -> Any:
    """A model without memory that knows its files; None where they do not hold its parameters, or it is recurrent."""
    from accelerate import init_empty_weights
    from transformers import AutoConfig, DynamicCache, GenerationConfig

    from rlhf_core.models.layers.trunk_and_head import keys_and_values_only, split_lm_head
    from rlhf_core.models.random_state import preserved_rng

    described: Any = AutoConfig.from_pretrained(str(folder), **options)
    if getattr(described, "quantization_config", None) is not None:
        return None
    with preserved_rng(), init_empty_weights(include_buffers=False):
        model: Any = model_class.from_config(
            described,
            dtype=getattr(torch, config.dtype),
            attn_implementation=config.attention_or_eager,
            trust_remote_code=config.trust_remote_code,
        )
    model.tie_weights()  # making a parameter without memory unties it
    if is_converted(model):
        return None
    missing = remember(model, stored_in(weight_files(folder)))
    parts = split_lm_head(model)
    if parts is None or not keys_and_values_only(DynamicCache(config=parts.trunk.config)):
        return None  # such a model is tried with its weights before the engine is built
    if missing:
        log.info("the model is loaded whole on every rank: its files do not hold %s by that name", missing[0])
        return None
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(str(folder))
    return model.eval()


def weight_files(folder: Path) -> list[Path]:
    """The files that transformers reads in a model's folder, and none of those beside them."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file():
        return [whole]
    if not index.is_file():
        return []
    return sorted({folder / name for name in json.loads(index.read_text())["weight_map"].values()})


def is_converted(model: Any) -> bool:
    """Whether transformers computes weights of such a model from those in its files, which may have the same names."""
    if getattr(model, "_weight_conversions", None):
        return True
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
    except ImportError:  # before such mappings
        return False
    return bool(get_model_conversion_mapping(model, add_legacy=False))


class ValuesForAdapters:
    """Lets parameters without memory look as if they had values, so that adapters get theirs."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self._stand_ins: dict[int, tuple[torch.nn.Parameter, torch.nn.Parameter]] = {}

    def __enter__(self) -> None:
        by_meta: dict[int, torch.nn.Parameter] = {}
        for owner in self.model.modules():
            for leaf, parameter in list(owner._parameters.items()):
                if parameter is None or not parameter.is_meta:
                    continue
                if id(parameter) not in by_meta:
                    one = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
                    stand_in = by_meta[id(parameter)] = torch.nn.Parameter(one, parameter.requires_grad)
                    self._stand_ins[id(stand_in)] = (stand_in, parameter)
                owner._parameters[leaf] = by_meta[id(parameter)]

    def __exit__(self, *_: object) -> None:
        """Take them away; what became of ``requires_grad`` stays."""
        for owner in self.model.modules():
            for leaf, parameter in list(owner._parameters.items()):
                if parameter is not None and id(parameter) in self._stand_ins:
                    stand_in, real = self._stand_ins[id(parameter)]
                    real.requires_grad = stand_in.requires_grad
                    owner._parameters[leaf] = real
