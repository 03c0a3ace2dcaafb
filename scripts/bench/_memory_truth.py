"""What memory a run really takes, on a CPU and on a card; for :mod:`._memory_run`.

On a CPU the truth is the bytes of live tensors (resident memory has libraries and the allocator in it), on a card what
torch's allocator has given out, which has cuBLAS's workspaces in it; what it has reserved of the card is noted beside.
NCCL's buffers and the context of CUDA are in neither.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol
from unittest.mock import patch

import torch

from rlhf_plugin_preflight.memory.live import LiveBytes

MEASURED, RESERVED = "measured", "reserved"


class Truth(Protocol):
    """Peaks since :meth:`begin`."""

    def counting(self) -> AbstractContextManager[None]:
        """Around a run: count."""
        ...

    def begin(self) -> None:
        """Forget the peaks: the next ones are of what follows."""
        ...

    def peaks(self) -> dict[str, int]:
        """Bytes, by what is counted; :data:`MEASURED` is what a plan is compared with."""
        ...


class LiveTensors:
    def __init__(self) -> None:
        self.live = LiveBytes()

    @contextmanager
    def counting(self) -> Generator[None, None, None]:
        """Count, sizes that FSDP gives its storages included."""
        with self.live, resizes_seen(self.live):
            yield

    def begin(self) -> None:
        self.live.begin()

    def peaks(self) -> dict[str, int]:
        return {MEASURED: self.live.peak}


class CardMemory:
    """What torch's allocator has given out, and reserved, of one card."""

    def __init__(self, card: int) -> None:
        self.card = card

    @contextmanager
    def counting(self) -> Generator[None, None, None]:
        """The allocator counts anyway, once CUDA is there."""
        torch.cuda.init()
        self.begin()
        yield

    def begin(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.card)

    def peaks(self) -> dict[str, int]:
        """Of both; memory is given out on the host, so that no kernel has to be waited for."""
        return {
            MEASURED: torch.cuda.max_memory_allocated(self.card),
            RESERVED: torch.cuda.max_memory_reserved(self.card),
        }


@contextmanager
def resizes_seen(live: LiveBytes) -> Generator[None, None, None]:
    """FSDP frees what it gathered by giving its storage no size, which is no operation."""
    resize = torch.UntypedStorage.resize_

    def resize_and_count(self: torch.UntypedStorage, size: int) -> Any:
        out = resize(self, size)
        live.resized(self)
        return out

    with patch.object(torch.UntypedStorage, "resize_", resize_and_count):
        yield
