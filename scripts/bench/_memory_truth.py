"""What memory a run really takes; for :mod:`._memory_run`.

On a CPU the bytes of live tensors (resident memory has libraries in it), on a card what torch's allocator has given
out, cuBLAS's workspaces included. NCCL's buffers and the context of CUDA are in neither.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from rlhf_plugin_preflight.memory.live import LiveBytes

MEASURED, RESERVED = "measured", "reserved"


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
