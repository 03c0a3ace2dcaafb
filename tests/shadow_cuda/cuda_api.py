"""What ``torch.cuda`` says and does on the card: random state, streams, events, properties."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

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
        "get_sync_debug_mode": zero,
        "set_sync_debug_mode": nothing,
        "init": nothing,
        "_lazy_init": nothing,
        "_exchange_device": zero,
        "_maybe_exchange_device": zero,
        "Stream": Stream,
        "Event": CudaEvent,
    }
