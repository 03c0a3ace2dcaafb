"""A device beside the CPU that torch takes for another, with real numbers, so that mixing shows without a GPU.

Its tensors are of torch's key for backends written in Python, and hold a tensor of the CPU with the values. Every
operation goes through :class:`Accelerator`, which does it on the CPU and

- refuses tensors of both devices in one operation, as CUDA does: all but single numbers, and indices, which CUDA
  copies;
- notes where the host waits for a value: ``.item()``, ``.cpu()``, ``.tolist()``, and whatever has a shape that
  depends on values (``nonzero``, an index by a mask, ``unique``); not where it waits to hand a list over, as CUDA does.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "elsewhere"
aten = torch.ops.aten


class _Module:
    """What torch asks of ``torch.elsewhere``; it draws no random numbers of its own."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def manual_seed_all(self, seed: int) -> None:
        """Nothing to seed."""

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.zeros(0, dtype=torch.uint8)

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        """Nothing to set."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


_setup_privateuseone_for_python_backend(NAME, _Module())
DEVICE = torch.device(NAME, 0)

READS = {aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default}
SHAPED_BY_VALUES = {
    aten.nonzero.default,
    aten.masked_select.default,
    aten.masked_scatter_backward.default,
    aten._unique2.default,
    aten.unique_consecutive.default,
    aten.repeat_interleave.Tensor,
}
COPIES = {aten._to_copy.default, aten.copy_.default}
INDEXES = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}


class There(torch.Tensor):
    """A tensor on the other device; ``host`` has its values."""

    host: torch.Tensor

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> There:
        made: There = torch.Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=DEVICE,
        )
        made.host = host
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"There({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} outside of Accelerator")


class Accelerator(TorchDispatchMode):
    """While it is entered, its device can be used; ``waits`` are the places where the host waited."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        there = [leaf for leaf in leaves if isinstance(leaf, There)]
        wanted = kwargs.get("device")
        to_there = bool(there) if wanted is None else torch.device(wanted).type == NAME
        if there:
            self._check(func, args, leaves)
        if (there and func in READS | SHAPED_BY_VALUES) or self._index_by_mask(func, args):
            self._waited(func)
        if func is aten.copy_.default:
            to_there = isinstance(args[0], There)
        if func in COPIES and there and not to_there:
            self._waited(func)
        if wanted is not None and to_there:
            kwargs["device"] = torch.device("cpu")
        out = func(*tree_map(_host, args), **tree_map(_host, kwargs))
        if not to_there:
            return args[0] if func is aten.copy_.default else out
        wrapped = tree_map(lambda x: There(x) if isinstance(x, torch.Tensor) else x, out)
        if not there:
            return wrapped
        return return_and_correct_aliasing(func, args, kwargs, wrapped)

    def _check(self, func: Any, args: Any, leaves: list[torch.Tensor]) -> None:
        if func in COPIES:
            return
        if func in INDEXES:
            leaves = [args[0], *(a for a in args[2:] if isinstance(a, torch.Tensor))]
        if here := [x for x in leaves if not isinstance(x, There) and x.dim()]:
            shapes = [f"{tuple(x.shape)} on {x.device.type}" for x in leaves]
            raise RuntimeError(f"{func} of tensors on two devices ({here[0].dtype}): {', '.join(shapes)}")

    def _index_by_mask(self, func: Any, args: Any) -> bool:
        if func not in INDEXES or not isinstance(args[0], There):
            return False
        return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])

    def _waited(self, func: Any) -> None:
        ours = [f for f in traceback.extract_stack() if "/rlhf_" in f.filename or "/transformers/" in f.filename]
        where = f"{ours[-1].filename.rsplit('/site-packages/')[-1]}:{ours[-1].lineno}" if ours else "?"
        self.waits.append(f"{func} at {where}")


def _as_subclass(tensor: Any, cls: Any) -> Any:
    """``Tensor.as_subclass``, which torch cannot do to a tensor over there: one of both classes."""
    if isinstance(tensor, There):
        return type(f"{cls.__name__}There", (There, cls), {})(tensor.host)
    return torch._C.TensorBase.as_subclass(tensor, cls)


def _host(x: Any) -> Any:
    return x.host if isinstance(x, There) else x


@contextmanager
def accelerator() -> Iterator[Accelerator]:
    """The device, to be used while this is entered."""
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=there) is a copy, which the mode sees
    try:
        with (
            patch.object(torch.Tensor, "as_subclass", _as_subclass),
            torch.autograd.set_multithreading_enabled(False),
            Accelerator() as entered,
        ):
            yield entered
    finally:
        torch._C._set_only_lift_cpu_tensors(False)


def move(model: torch.nn.Module) -> None:
    """Like ``model.to``, which cannot give a parameter another class: tied ones stay tied."""
    moved: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                there = torch.nn.Parameter(parameter.detach().to(DEVICE), parameter.requires_grad)
                module._parameters[name] = moved.setdefault(id(parameter), there)  # pyright: ignore
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = moved.setdefault(id(buffer), buffer.to(DEVICE))
