"""Cuts a batch into micro-batches, and shares groups out to ranks, by what they cost; forwards without gradient."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch

from rlhf_core.distributed.group import borrow_dummy_sample
from rlhf_core.models.layers.trunk_and_head import call_trunk_once
from rlhf_core.models.slices import read_weights
from rlhf_core.plugins.strategy_protocols import ModuleRelease, ShardedForward, ShardedLoading, Strategy
from rlhf_core.training.forward import ForwardOptions
from rlhf_core.training.rollout_batch import TrainingSample

MicroBatcher = Callable[[Sequence[Any]], list[list[int]]]
"""Samples -> indices of each micro-batch."""


def micro_batches_of_size(size: int) -> MicroBatcher:
    """Micro-batches of ``size`` sequences each, as they come."""
    return lambda samples: [list(range(i, min(i + size, len(samples)))) for i in range(0, len(samples), size)]


def positions(samples: Sequence[TrainingSample], options: ForwardOptions) -> int:
    """Positions that one forward over the samples computes, padding included."""
    pieces = [piece for s in samples for piece in s.pieces]
    prompts = [len(p) for p in {prompt for prompt, _ in pieces}] if options.share_prefix else []
    rows = [len(ids) + (0 if options.share_prefix else len(prompt)) for prompt, ids in pieces]
    if options.packing:
        return sum(prompts) + sum(rows)
    return len(prompts) * max(prompts, default=0) + len(rows) * max(rows, default=0)


def flops(samples: Sequence[TrainingSample], share_prefix: bool, width: int) -> float:
    """Cost in tokens: ``n + m / (6 H)`` of n tokens and m pairs, H = ``width`` (Kaplan et al. 2020, table 1)."""
    tokens = pairs = 0
    seen_prompts: set[tuple[int, ...]] = set()
    for prompt_ids, completion_ids in (piece for sample in samples for piece in sample.pieces):
        prompt, completion = len(prompt_ids), len(completion_ids)
        if not share_prefix or prompt_ids not in seen_prompts:
            tokens, pairs = tokens + prompt, pairs + prompt * prompt // 2
            seen_prompts.add(prompt_ids)
        tokens, pairs = tokens + completion, pairs + completion * prompt + completion * completion // 2
    return tokens + pairs / (6 * width)


def balance(costs: Sequence[float], count: int) -> list[list[int]]:
    """Indices in ``count`` parts of nearly equal cost: dearest first, each to the cheapest part (Graham 1969), ties to
    the first, so that the same costs give the same parts; each part is ascending.
    """
    parts: list[list[int]] = [[] for _ in range(count)]
    heap = [(0.0, n) for n in range(count)]
    for index in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, n = heapq.heappop(heap)
        parts[n].append(index)
        heapq.heappush(heap, (load + costs[index], n))
    return [sorted(part) for part in parts]


def by_tokens(samples: Sequence[TrainingSample], budget: int, options: ForwardOptions, width: int) -> list[list[int]]:
    """Micro-batches of nearly equal flops and at most ``budget`` positions, but for one longer sequence alone."""
    units = _units(samples, budget, options)
    if not options.packing:
        return _filled(samples, units, budget, options)
    costs = [flops([samples[i] for i in unit], options.share_prefix, width) for unit in units]
    total = positions(samples, options)
    for count in range(min(len(units), max(1, -(-total // budget))), len(units) + 1):
        parts = [sorted(i for n in part for i in units[n]) for part in balance(costs, count)]
        if count == len(units) or all(positions([samples[i] for i in part], options) <= budget for part in parts):
            return parts
    return []


def _units(samples: Sequence[TrainingSample], budget: int, options: ForwardOptions) -> list[list[int]]:
    """Completions of a prompt, by length, as many as fit the budget."""
    prompts: dict[tuple[int, ...], list[int]] = {}
    for n, item in enumerate(samples):
        prompts.setdefault(item.prompt_ids, []).append(n)
    units: list[list[int]] = []
    for group in prompts.values():
        unit: list[int] = []
        for n in sorted(group, key=lambda n: len(samples[n].completion_ids)):
            if unit and positions([samples[i] for i in [*unit, n]], options) > budget:
                units.append(unit)
                unit = []
            unit.append(n)
        units.append(unit)
    return units


def _filled(
    samples: Sequence[TrainingSample], units: list[list[int]], budget: int, options: ForwardOptions
) -> list[list[int]]:
    """Padded rows: neighbours in length share a micro-batch, as many as fit."""
    parts: list[list[int]] = []
    for unit in sorted(units, key=lambda u: max(len(samples[i].completion_ids) for i in u)):
        joined = [*parts[-1], *unit] if parts else unit
        if parts and positions([samples[i] for i in joined], options) <= budget:
            parts[-1] = joined
        else:
            parts.append(list(unit))
    return parts


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
        self.strategy, self.module, self.frozen = strategy, module, frozen
        self._sharding = strategy if isinstance(strategy, ShardedForward) else None
        if self._sharding is not None:
            call_trunk_once(module)
            self.module = self._sharding.prepare_frozen(module) if frozen else module
            if frozen and isinstance(strategy, ShardedLoading):
                read_weights(self.module, strategy.weights_device)

    def release(self) -> None:
        """Let the strategy keep nothing of the module, which is called no more; all ranks call it."""
        if isinstance(self.strategy, ModuleRelease):
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
        missing, spare = 0, None
        if self._sharding is not None:  # each forward is a collective: all ranks make as many
            counts = self.strategy.gather_objects(len(micros))
            spare = borrow_dummy_sample(self.strategy, micros[0] if micros else None, [count > 0 for count in counts])
            missing = max(counts) - len(micros)
        with self._weights() as module, inside or nullcontext():
            results = [call(module, micro) for micro in micros]
            for _ in range(missing):
                call(module, spare or ())
        return list(zip(parts, results, strict=True))

    @contextmanager
    def _weights(self) -> Generator[torch.nn.Module, None, None]:
        if self._sharding is not None:
            with self._sharding.sharded_forward(self.module) as module:
                yield module
        elif self.frozen:
            yield self.module
        else:
            with self.strategy.gathered(self.module):
                yield self.strategy.unwrap(self.module)
