"""The policy's structure without weights, but for one unit at a time (a decoder layer, or a module outside of them)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlhf_core.distributed import decoder_layers
from rlhf_core.models import has_meta_weights, read_elements

Value = Callable[[str], torch.Tensor]
"""Name of a parameter -> its weight, where and in the number type that the skeleton computes in."""
LISTS = (torch.nn.ModuleList, torch.nn.ModuleDict)
"""Never called themselves."""


class Slot(NamedTuple):
    """Where a parameter goes."""

    owner: torch.nn.Module
    leaf: str
    name: str
    """In the model; tied parameters have one."""


class Unit(NamedTuple):
    """What has its weights together."""

    module: torch.nn.Module
    """Its call needs them."""
    slots: list[Slot]


class Skeleton:
    """A copy of a model that holds no weights between calls."""

    def __init__(self, model: Any) -> None:
        self.model = without_weights(model)
        self.model.eval()
        shapes = {id(p): name for name, p in self.model.named_parameters()}
        self.names = list(shapes.values())
        self._shapes = {name: p.shape for name, p in self.model.named_parameters()}
        self._slots = {
            id(owner): [Slot(owner, leaf, shapes[id(p)]) for leaf, p in owner._parameters.items() if p is not None]
            for owner in self.model.modules()
        }
        self._empty: dict[str, torch.nn.Parameter] = {}
        self._ready: tuple[torch.device, torch.dtype] | None = None
        self._value: Value | None = None
        self._hooks: list[Any] = []
        self._tried = False
        """A call has shown that no weight is used outside of the call of its unit."""
        self._watch(list(self._cut(self.model, _holders(self.model))))

    def __call__(self, value: Value, device: torch.device, dtype: torch.dtype, *args: Any, **kwargs: Any) -> Any:
        self._prepare(device, dtype)
        self._value = value
        try:
            with torch.no_grad(), nullcontext() if self._tried else OnlyWithValues():
                output = self.model(*args, **kwargs)
            self._tried = True
            return output
        except (RuntimeError, NotImplementedError) as error:
            self._drop([slot for unit in self._units for slot in unit.slots])
            if len(self._units) == 1 or "meta" not in str(error):
                raise
        finally:
            self._value = None
        # a module uses the weight of another one, which is not called
        self._watch([Unit(self.model, [slot for unit in self._units for slot in unit.slots])])
        return self(value, device, dtype, *args, **kwargs)

    def _watch(self, units: list[Unit]) -> None:
        """Let the call of each unit's module have its weights."""
        for hook in self._hooks:
            hook.remove()
        self._units, self._hooks = units, []
        for unit in units:
            before, after = partial(self._fill, unit.slots), partial(self._drop, unit.slots)
            self._hooks.append(unit.module.register_forward_pre_hook(lambda *_, fill=before: fill()))
            self._hooks.append(unit.module.register_forward_hook(lambda *_, drop=after: drop()))

    def _prepare(self, device: torch.device, dtype: torch.dtype) -> None:
        """Buffers where the weights will be; of the weights their number type alone."""
        if self._ready == (device, dtype):
            return
        for part in self.model.modules():
            part._buffers.update({n: None if b is None else b.to(device) for n, b in part._buffers.items()})
        tensors = {name: torch.empty(shape, device="meta", dtype=dtype) for name, shape in self._shapes.items()}
        self._empty = {name: torch.nn.Parameter(t, requires_grad=False) for name, t in tensors.items()}
        self._drop([slot for unit in self._units for slot in unit.slots])
        self._ready = (device, dtype)

    def _fill(self, slots: list[Slot]) -> None:
        assert self._value is not None
        weights: dict[str, torch.nn.Parameter] = {}
        for slot in slots:
            if slot.name not in weights:
                weights[slot.name] = torch.nn.Parameter(self._value(slot.name), requires_grad=False)
            slot.owner._parameters[slot.leaf] = weights[slot.name]

    def _drop(self, slots: list[Slot]) -> None:
        for slot in slots:
            slot.owner._parameters[slot.leaf] = self._empty[slot.name]

    def _cut(self, module: torch.nn.Module, holders: set[int]) -> Iterator[Unit]:
        """The units of a part of the model."""
        apart = id(module) in holders or isinstance(module, LISTS)
        slots = self._slots[id(module)] if apart else [s for part in module.modules() for s in self._slots[id(part)]]
        if slots:
            yield Unit(module, list(slots))
        for child in module.children() if apart else ():
            yield from self._cut(child, holders)


class OnlyWithValues(TorchDispatchMode):
    """Refuses tensors without values, of which some operations of a CPU would make any numbers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(isinstance(x, torch.Tensor) and x.is_meta for x in tree_leaves((args, kwargs))):
            raise RuntimeError(f"{func} of a tensor on the meta device")
        return func(*args, **(kwargs or {}))


def without_weights(model: Any) -> Any:
    """A copy whose parameters have no memory; it computes in what its weights will be, those of 4 bits unpacked."""
    copies: dict[int, Any] = {
        id(p): torch.nn.Parameter(torch.empty_like(p, device="meta"), False) for p in model.parameters()
    }
    packed = (m for m in model.modules() if hasattr(getattr(m, "weight", None), "quant_state"))
    copies |= {id(m): _linear_like(m) for m in packed if hasattr(m, "in_features") and not hasattr(m, "base_layer")}
    copied = copy.deepcopy(model, copies)
    for module in copied.modules():
        if "compute_dtype" in module.__dict__:
            del module.compute_dtype, module.forward
    return copied


def _linear_like(layer: Any) -> torch.nn.Linear:
    return torch.nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, device="meta")


def _holders(model: torch.nn.Module) -> set[int]:
    """Modules around decoder layers: weights of their own apart, they have those of their parts one after another."""
    layers = {id(layer) for layer in decoder_layers(model)}
    inside = {id(part) for layer in decoder_layers(model) for part in layer.modules()}
    rest = [part for part in model.modules() if id(part) not in inside]
    return {id(part) for part in rest if any(id(below) in layers for below in part.modules())}


class FrozenOnDisk(Mapping[str, torch.Tensor]):
    """Weights that a model without weights does not train, each read from the model's files when looked up."""

    def __init__(self, model: Any, named: Callable[[str], str] = str) -> None:
        copied = copy.deepcopy(model)
        names = {id(p): named(name) for name, p in copied.named_parameters()}
        self._reads: dict[str, Callable[[], torch.Tensor]] = {}

        def remembered(parameter: torch.nn.Parameter, read: Callable[[int, int], torch.Tensor]) -> torch.nn.Parameter:
            name, shape, dtype = names[id(parameter)], parameter.shape, parameter.dtype
            self._reads[name] = lambda: read(0, shape.numel()).view(shape).to(dtype)
            return torch.nn.Parameter(torch.empty_like(parameter), requires_grad=False)

        if has_meta_weights(copied):
            read_elements(copied, remembered)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._reads[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._reads)

    def __len__(self) -> int:
        return len(self._reads)
