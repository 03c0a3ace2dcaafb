"""Forwards without gradient, in which ranks may have different numbers of micro-batches.

A strategy that implements :class:`rlhf_core.plugins.strategy_protocols.ShardedForward` keeps its shards: every rank
makes as
many forwards as the one with the most. With any other the weights are whole meanwhile, and a rank makes its own only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch

from rlhf_core.distributed.exchange import borrow_dummy_sample
from rlhf_core.models.layers.trunk_and_head import call_trunk_once
from rlhf_core.models.slices import read_weights
from rlhf_core.plugins.protocols import ModuleRelease, ShardedForward, ShardedLoading, Strategy
from rlhf_core.training.micro_batches import MicroBatcher, micro_batches_of_size

R = TypeVar("R")
Compute = Callable[[Any, Sequence[Any]], Sequence[R]]
"""(Module, samples) -> one row per sample."""


class NoGradForward:
    """Calls one module without gradient; all ranks call together.

    Args:
        strategy: ranks, and where the weights are.
        module: prepared by the strategy; with ``frozen`` not yet.
        frozen: the module is never trained. It is prepared here if the strategy shards such modules; if not, every
            rank holds it whole.
    """

    def __init__(self, strategy: Strategy, module: torch.nn.Module, *, frozen: bool = False) -> None:
        self.strategy, self.frozen = strategy, frozen
        self._sharding = strategy if isinstance(strategy, ShardedForward) else None
        if self._sharding is not None:
            call_trunk_once(module)
        prepares = frozen and self._sharding is not None
        self.module = self._sharding.prepare_frozen(module) if prepares and self._sharding else module
        if prepares and isinstance(strategy, ShardedLoading):
            read_weights(self.module, strategy.weights_device)

    def release(self) -> None:
        """Let the strategy keep nothing of a frozen module, which is called no more; all ranks call it."""
        if self.frozen and isinstance(self.strategy, ModuleRelease):
            self.strategy.release(self.module)

    def rows(
        self,
        samples: Sequence[Any],
        micro_batcher: MicroBatcher | int,
        compute: Compute[R],
        inside: AbstractContextManager[Any] | None = None,
    ) -> list[R]:
        """One row per sample.

        Args:
            samples: of this rank; may be none.
            micro_batcher: cuts them; a number is the samples of each.
            compute: runs inside of the module's ``forward(samples, compute)``, so that hooks on the module see it.
            inside: context of all forwards, entered where the weights are.
        """
        rows: dict[int, R] = {}
        for part, values in self.parts(samples, micro_batcher, lambda module, micro: module(micro, compute), inside):
            rows |= zip(part, values, strict=True)
        return [rows[n] for n in range(len(samples))]

    @torch.no_grad()
    def parts(
        self,
        samples: Sequence[Any],
        micro_batcher: MicroBatcher | int,
        call: Callable[[Any, Sequence[Any]], R],
        inside: AbstractContextManager[Any] | None = None,
    ) -> list[tuple[list[int], R]]:
        """What ``call(module, samples)`` returns for each micro-batch, with the places of its samples.

        ``call`` must call the module itself, once, and leave nothing behind: a rank that has no micro-batch left
        repeats one and discards the result.
        """
        cut = micro_batches_of_size(micro_batcher) if isinstance(micro_batcher, int) else micro_batcher
        parts = cut(samples)
        micros = [[samples[i] for i in part] for part in parts]
        count, spare = self._in_step(micros)
        with self._weights() as module, inside or nullcontext():
            results = [call(module, micro) for micro in micros]
            for _ in range(count - len(micros)):
                call(module, spare)
        return list(zip(parts, results, strict=True))

    def _in_step(self, micros: Sequence[Sequence[Any]]) -> tuple[int, Sequence[Any]]:
        """Forwards that this rank has to make, and the micro-batch that it may repeat."""
        if self._sharding is None:
            return len(micros), ()
        counts = self.strategy.gather_objects(len(micros))
        spare = borrow_dummy_sample(self.strategy, micros[0] if micros else None, [count > 0 for count in counts])
        return max(counts), spare or ()

    @contextmanager
    def _weights(self) -> Iterator[torch.nn.Module]:
        """Yield the module to call."""
        if self._sharding is not None:
            with self._sharding.sharded_forward(self.module) as module:
                yield module
        elif self.frozen:
            yield self.module
        else:
            with self.strategy.gathered(self.module):
                yield self.strategy.unwrap(self.module)
