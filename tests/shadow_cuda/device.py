"""A card beside the CPU that torch and this toolkit take for ``cuda:0``, with real numbers, so that the CUDA roads run
without a GPU.

Its tensors are plain ``torch.Tensor`` objects of device ``cuda:0`` whose attribute ``host`` is a CPU tensor with the
values. Every operation goes through :class:`Shadow`, which does it on the CPU and

- refuses tensors of both devices in one operation, as CUDA does: all but single numbers, and indices;
- records, with the Python line (:mod:`tests.shadow_cuda.recorder`): ``wait``, where the host waits (``.item()``,
  copies to the host but to pinned memory in the background, shapes that depend on values); ``copy``, a copy to the
  device from pageable memory, which waits too; and ``product``, a product of matrices that is done on the host.

What it does not have: kernels of CUDA alone (flash attention, Triton), their rounding, streams that run beside each
other, its speed and its memory.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import itertools
import threading
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.shadow_cuda.cuda_api import CAPTURING, DEVICE, Generator, card_random, cuda_functions, seed
from tests.shadow_cuda.recorder import RECORDER

aten = torch.ops.aten

READS = {aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default}
SHAPED_BY_VALUES = {
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.repeat_interleave.Tensor,
    aten.bincount.default,
}
COPIES = {aten._to_copy.default, aten.copy_.default}
INDEXES = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
PRODUCTS = {
    aten.mm.default,
    aten.mm.out,
    aten.addmm.default,
    aten.addmm_.default,
    aten.bmm.default,
    aten.baddbmm.default,
    aten.linear.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.mkldnn._linear_pointwise.default,
}
PLAIN = (torch.Tensor, torch.nn.Parameter)


class _Wrapper(torch.Tensor):
    """What torch wants to make a tensor that has no memory; what is made is turned into a plain tensor."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} outside of the shadow card")


def wrap(host: torch.Tensor, cls: type[torch.Tensor] = torch.Tensor) -> torch.Tensor:
    """A tensor of the card, with the values of one of the CPU, which it shares."""
    made: Any = torch.Tensor._make_wrapper_subclass(
        _Wrapper,
        host.shape,
        strides=host.stride(),
        storage_offset=host.storage_offset(),
        dtype=host.dtype,
        device=DEVICE,
    )
    made.__class__ = cls
    made.host = host
    return made


def there(x: Any) -> bool:
    """Whether it is a tensor of the card."""
    return isinstance(x, torch.Tensor) and "host" in x.__dict__


def host_of(x: Any) -> Any:
    """The values of a tensor of the card; anything else as it is."""
    return x.__dict__["host"] if there(x) else x


def _on_host(x: torch.Tensor) -> bool:
    """Whether it has values, on the CPU; those of a rehearsal have none."""
    return type(x) in PLAIN and x.device.type == "cpu"


def _marked(made: Any, pinned: Any) -> Any:
    """What was made in memory of the host that the card can read by itself, if that was asked for."""
    if pinned:
        _storage(made).shadow_pinned = True  # pyright: ignore
    return made


def _is_pinned(tensor: torch.Tensor) -> bool:
    return getattr(_storage(tensor), "shadow_pinned", False)


class Shadow(TorchDispatchMode):
    """While a thread has entered it, the card can be used there."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        on_card = [leaf for leaf in leaves if there(leaf)]
        wanted = kwargs.get("device")
        to_card = bool(on_card) if wanted is None else torch.device(wanted).type == "cuda"
        if func is aten.copy_.default:
            to_card = there(args[0])
        if (
            func in PRODUCTS
            and not on_card
            and all(type(leaf) in PLAIN and leaf.device.type == "cpu" for leaf in leaves)
        ):
            RECORDER.add("product", func)
        if not to_card and any(isinstance(x, torch.device) and x.type == "cuda" for x in args):
            to_card = True
        pinned = not to_card and kwargs.pop("pin_memory", None)
        if not on_card and not to_card:
            return _marked(func(*args, **kwargs), pinned)
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:  # in inference mode it comes here whole
                return func.decompose(*args, **kwargs)
        self._check(func, args, leaves)
        events = len(RECORDER.events)
        self._record(func, args, kwargs, bool(on_card), to_card)
        if (CAPTURING.graph is not None or CAPTURING.strict) and len(RECORDER.events) > events:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing, or where none may wait")
        if wanted is not None and to_card:
            kwargs["device"] = torch.device("cpu")
        if to_card and kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        run = func if CAPTURING.graph is None else partial(CAPTURING.graph.run, func)
        with card_random(func if to_card else None):
            out = run(*tree_map(host_of, args), **tree_map(host_of, kwargs))
        return _marked(_returned(func, args, kwargs, out, to_card), pinned)

    def _check(self, func: Any, args: Any, leaves: list[torch.Tensor]) -> None:
        if func in COPIES:
            return
        if func in INDEXES:
            leaves = [args[0], *(a for a in args[2:] if isinstance(a, torch.Tensor))]
        if not any(there(x) for x in leaves):
            return
        if here := [x for x in leaves if not there(x) and x.dim() and x.device.type != "meta"]:
            shapes = [f"{tuple(x.shape)} on {x.device.type}" for x in leaves]
            raise RuntimeError(
                f"Expected all tensors to be on the same device: {func} ({here[0].dtype}), {', '.join(shapes)}"
            )

    def _record(self, func: Any, args: Any, kwargs: Any, on_card: bool, to_card: bool) -> None:
        if on_card and (func in READS or func in SHAPED_BY_VALUES):
            if func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is not None:
                return
            RECORDER.add("wait", func)
        elif func in INDEXES and there(args[0]):
            self._record_index(func, args)
        elif func in COPIES:
            source = args[1] if func is aten.copy_.default else args[0]
            if to_card and not there(source) and not _is_pinned(source) and source.numel():
                RECORDER.add("copy", func)
            elif not to_card and there(source):
                background = kwargs.get("non_blocking")  # torch pins what it makes then, not what it is given
                if func is aten.copy_.default:
                    background = (background or args[2:3] == (True,)) and _is_pinned(args[0])
                if not background:
                    RECORDER.add("wait", func)

    def _record_index(self, func: Any, args: Any) -> None:
        indices = [i for i in args[1] if i is not None]
        masks = [i for i in indices if i.dtype in (torch.bool, torch.uint8)]
        accumulate = len(args) > 3 and args[3]
        if func is not aten.index.Tensor and masks == indices and not accumulate and args[2].numel() == 1:
            return  # torch fills what is masked
        if masks:
            RECORDER.add("wait", func)
        elif any(not there(i) and i.numel() for i in indices):
            RECORDER.add("copy", func)


def _returned(func: Any, args: Any, kwargs: Any, out: Any, to_card: bool) -> Any:
    """The outputs as tensors of the card; what was changed in place is the argument itself."""
    arguments = func._schema.arguments
    changed_ones = [a for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    written = {alias: argument.name for argument in changed_ones for alias in argument.alias_info.before_set}
    given = dict(zip([argument.name for argument in arguments], args)) | kwargs
    outs = out if isinstance(out, (tuple, list)) else (out,)
    results: list[Any] = []
    for result, declared in itertools.zip_longest(outs, func._schema.returns[: len(outs)]):
        alias = declared.alias_info if declared is not None else None
        if (
            alias is not None
            and alias.is_write
            and (name := next((written[a] for a in alias.before_set if a in written), ""))
        ):
            changed = given[name]
            if there(changed) and (changed.shape, changed.stride()) != (changed.host.shape, changed.host.stride()):
                _remake(changed)
            results.append(changed)
        else:
            results.append(wrap(result) if to_card and isinstance(result, torch.Tensor) else result)
    if not isinstance(out, (tuple, list)):
        if isinstance(out, torch.Tensor) and len(func._schema.returns) == 1:
            return results[0]
        return out
    if len(func._schema.returns) == 1:  # a list of tensors
        return tree_map(lambda x: wrap(x) if to_card and isinstance(x, torch.Tensor) else x, out)
    return type(out)(results) if isinstance(out, list) else tuple(results)


def _remake(changed: Any) -> None:
    """An operation in place has given the values another shape."""
    fresh = wrap(changed.host, type(changed))
    torch._C._swap_tensor_impl(changed, fresh)


_make_subclass, _storage = torch.Tensor._make_subclass, torch.Tensor.untyped_storage
_as_subclass, _numpy = torch.Tensor.as_subclass, torch.Tensor.numpy
_data: Any = torch.Tensor.data


def _subclassed(cls: Any, data: Any, require_grad: bool = False, **more: Any) -> Any:
    if not there(data):
        return _make_subclass(cls, data, require_grad, **more)
    made = data.detach()
    made.__class__ = cls
    return made.requires_grad_(require_grad)


def _on_card_as(tensor: Any, cls: Any) -> Any:
    if not there(tensor):
        return _as_subclass(tensor, cls)
    return wrap(tensor.host, cls)


def _set_data(tensor: Any, value: Any) -> None:
    """Also from one device to another, which torch does to parameters in place: they stay the same objects."""
    if not there(tensor) and not there(value):
        _data.__set__(tensor, value)
        return
    gradient, wanted = tensor.grad, tensor.requires_grad
    fresh = value.detach().requires_grad_(wanted)
    tensor.__dict__.pop("host", None)
    if there(fresh):
        tensor.__dict__["host"] = fresh.host
    torch._C._swap_tensor_impl(tensor, fresh)
    if gradient is not None:  # which torch leaves where it was, to be moved next
        tensor.grad = wrap(host_of(gradient)) if there(tensor) else host_of(gradient)


def _as_numpy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    if there(tensor):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy it first.")
    return _numpy(tensor, *args, **kwargs)


def _pinned(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    assert not there(tensor), "cannot pin memory of the card"
    copied = torch.empty_like(tensor, memory_format=torch.contiguous_format).copy_(tensor)
    _storage(copied).shadow_pinned = True  # pyright: ignore
    return copied


def _tensor_functions() -> dict[str, Any]:
    return {
        "_make_subclass": staticmethod(_subclassed),
        "as_subclass": _on_card_as,
        "numpy": _as_numpy,
        "tolist": lambda tensor: torch._C.TensorBase.tolist(tensor.cpu() if there(tensor) else tensor),
        "untyped_storage": lambda tensor: _storage(host_of(tensor)),
        "data_ptr": lambda tensor: torch._C.TensorBase.data_ptr(host_of(tensor)),
        "pin_memory": _pinned,
        "is_pinned": lambda tensor, device=None: not there(tensor) and _is_pinned(tensor),
        "data": property(_data.__get__, _set_data),
    }


def _enter_thread() -> None:
    torch.autograd.set_multithreading_enabled(False)
    Shadow().__enter__()


def install() -> None:
    """Give this process the card, for good: in every thread, after :func:`tests.shadow_cuda.guard.load` and before this
    toolkit is imported."""
    importlib.import_module("torch._dynamo")  # which an optimizer imports, and which reads torch.cuda's functions
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device="cuda") is a copy, which the mode sees
    torch._has_compatible_shallow_copy_type = lambda tensor, other: True
    seed(0)
    for name, function in cuda_functions().items():
        setattr(torch.cuda, name, function)
    for name, function in _tensor_functions().items():
        setattr(torch.Tensor, name, function)
    torch.Generator = Generator  # pyright: ignore
    run = threading.Thread.run

    def run_with_card(thread: threading.Thread) -> None:
        _enter_thread()
        run(thread)

    threading.Thread.run = run_with_card
    version = importlib.metadata.version
    importlib.metadata.version = lambda name: version(name).removesuffix("+cpu")
    _enter_thread()
