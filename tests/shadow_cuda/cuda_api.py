"""What ``torch.cuda`` says and does on the card: random state, streams, events, properties."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from tests.shadow_cuda.recorder import RECORDER

DEVICE = torch.device("cuda", 0)
NAME = "Shadow card"
MEMORY = 8 << 30


STATE: dict[str, torch.Tensor] = {}


@contextmanager
def card_random(func: Any) -> Iterator[None]:
    """Draw from the card's own random state."""
    if func is None or torch.Tag.nondeterministic_seeded not in func.tags:
        yield
        return
    before = torch._C.default_generator.get_state()
    torch._C.default_generator.set_state(STATE["cuda"])
    try:
        yield
    finally:
        STATE["cuda"] = torch._C.default_generator.get_state()
        torch._C.default_generator.set_state(before)


class Generator(torch.Generator):
    """A generator of the card is one of the CPU that says otherwise."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        made = super().__new__(cls, "cpu")
        made.named = torch.device(device)  # pyright: ignore
        return made

    @property
    def device(self) -> torch.device:  # pyright: ignore
        return self.named  # pyright: ignore


class Stream:
    """Work is done when it is asked for, so that all streams are one."""

    device = DEVICE
    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *args: object) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        return event or CudaEvent()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        RECORDER.add("wait", "stream.synchronize")


class CudaEvent:
    """Is past as soon as it is recorded."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def record(self, stream: Any = None) -> None: ...

    def wait(self, stream: Any = None) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Any) -> float:
        return 1.0

    def synchronize(self) -> None:
        RECORDER.add("wait", "event.synchronize")


class Capturing(threading.local):
    """The graph that a thread captures, and whether its waits are refused without one."""

    graph: CudaGraph | None = None
    strict = False


CAPTURING = Capturing()
GRAPHS: weakref.WeakSet[CudaGraph] = weakref.WeakSet()


def _set_sync_debug_mode(mode: int | str) -> None:
    CAPTURING.strict = mode in (2, "error")


class CudaGraph:
    """What is captured is done when the graph is replayed, and not before, with the same memory."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.operations: list[tuple[Any, Any, Any, Any]] = []
        self.written: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """Tensors that are changed, with their values before."""
        self.made: list[torch.Tensor] = []
        self.pool_number = (0, id(self))

    def pool(self) -> tuple[int, int]:
        return self.pool_number

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        assert CAPTURING.graph is None, "a graph is being captured"
        assert pool is None or pool in {graph.pool_number for graph in GRAPHS}, "no graph uses this pool any more"
        self.pool_number = pool or self.pool_number
        CAPTURING.graph = self
        GRAPHS.add(self)

    def run(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Capture an operation, whose tensors are on the host; its output has the memory of the replays."""
        for argument, value in zip(func._schema.arguments, args):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self.written.setdefault(id(value), (value, value.clone()))
        out = func(*args, **kwargs)
        self.operations.append((func, args, kwargs, out))
        given = {_memory(value) for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)}
        self.made += [x for x in tree_leaves(out) if isinstance(x, torch.Tensor) and _memory(x) not in given]
        return out

    def capture_end(self) -> None:
        CAPTURING.graph = None
        for value, before in self.written.values():
            value.copy_(before)
        for value in self.made:
            value.fill_(float("nan") if value.is_floating_point() else 0)

    def replay(self) -> None:
        with _disable_current_modes():  # this is the card
            for func, args, kwargs, out in self.operations:
                for made, again in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs))):
                    if isinstance(made, torch.Tensor) and made.data_ptr() != again.data_ptr():
                        made.copy_(again)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def seed(number: int) -> None:
    STATE["cuda"] = torch._C.Generator().manual_seed(number % 2**63).get_state()


def _get_state(device: Any = "cuda") -> torch.Tensor:
    return STATE["cuda"].clone()


def _set_state(new_state: torch.Tensor, device: Any = "cuda") -> None:
    assert new_state.device.type == "cpu", "torch.cuda.set_rng_state wants a state of the CPU"
    STATE["cuda"] = new_state.clone()


PROPERTIES = SimpleNamespace(
    name=NAME, total_memory=MEMORY, major=9, minor=0, multi_processor_count=1, is_integrated=False, uuid="shadow"
)


def cuda_functions() -> dict[str, Any]:
    nothing: Any = lambda *args, **kwargs: None  # noqa: E731
    zero: Any = lambda *args, **kwargs: 0  # noqa: E731
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: True,
        "device_count": lambda: 1,
        "current_device": zero,
        "set_device": nothing,
        "get_device_name": lambda device=None: NAME,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": lambda device=None: PROPERTIES,
        "synchronize": lambda device=None: RECORDER.add("wait", "synchronize"),
        "current_stream": lambda device=None: Stream(),
        "default_stream": lambda device=None: Stream(),
        "stream": lambda stream: stream or Stream(),
        "set_stream": nothing,
        "mem_get_info": lambda device=None: (MEMORY, MEMORY),
        "memory_allocated": zero,
        "max_memory_allocated": zero,
        "memory_reserved": zero,
        "max_memory_reserved": zero,
        "reset_peak_memory_stats": nothing,
        "memory_stats": lambda device=None: {},
        "empty_cache": nothing,
        "ipc_collect": nothing,
        "manual_seed": seed,
        "manual_seed_all": seed,
        "initial_seed": zero,
        "get_rng_state": _get_state,
        "set_rng_state": _set_state,
        "get_rng_state_all": lambda: [_get_state()],
        "set_rng_state_all": lambda states: _set_state(states[0]),
        "get_sync_debug_mode": lambda: 2 * CAPTURING.strict,
        "set_sync_debug_mode": _set_sync_debug_mode,
        "init": nothing,
        "_lazy_init": nothing,
        "_exchange_device": zero,
        "_maybe_exchange_device": zero,
        "Stream": Stream,
        "Event": CudaEvent,
        "CUDAGraph": CudaGraph,
        "is_current_stream_capturing": lambda: CAPTURING.graph is not None,
    }
