"""Base of strategies that divide tensors in their own way, over ranks that talk as the core's own strategy does."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch.distributed as dist

from rlhf_core.distributed.group import GroupCollectives
from rlhf_core.plugins.context import BuildContext


class OnRanks(GroupCollectives):
    """Exchanges between ranks, with their deadlines and messages, are those of ``ddp``.

    Args:
        ranks: the core's strategy for as many ranks.
    """

    sharded = True

    def __init__(self, ranks: Any) -> None:
        self.ranks = ranks
        self.rank, self.world_size, self.device = ranks.rank, ranks.world_size, ranks.device
        self.peers, self.timeout_s = ranks.peers, ranks.timeout_s
        self._own_group = not dist.is_initialized()
        if self._own_group:  # one process has no launcher's store
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # pyright: ignore[reportPrivateImportUsage]

    @staticmethod
    def ranks_of(ctx: BuildContext, timeout_s: float, device: str) -> Any:
        """The core's strategy of this process.

        Args:
            ctx: of the run.
            timeout_s: deadline of each exchange, seconds.
            device: ``auto``, ``cpu`` or ``cuda``.
        """
        ddp = ctx.registry.load("strategy", "ddp").model_validate({"timeout_s": timeout_s, "device": device})
        return ddp.build(ctx)

    def alone(self, what: str) -> AbstractContextManager[None]:
        """Rank 0 works; the others wait for it at the end."""
        return self.ranks.alone(what)

    def new_group(self, timeout_s: float) -> Any:
        """Collectives of the same ranks for a second thread."""
        return self.ranks.new_group(timeout_s)

    def close(self) -> None:
        """Leave the process group."""
        self.ranks.close()
        if self._own_group:
            dist.destroy_process_group()
