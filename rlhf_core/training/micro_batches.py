"""Cuts a batch into micro-batches, and shares groups out to ranks, by what they cost.

The update is the same however a batch is cut (it is divided by a global denominator), so that cutting is only about
memory and time: a budget of positions bounds the first, equal work per micro-batch and rank serves the second.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlhf_core.training.forward_options import ForwardOptions
from rlhf_core.training.training_sample import TrainingSample

if TYPE_CHECKING:
    from rlhf_core.training.policy_module import PolicyModule

MicroBatcher = Callable[[Sequence[Any]], list[list[int]]]
"""Samples -> indices of each micro-batch."""


def micro_batches_of_size(size: int) -> MicroBatcher:
    """Micro-batches of ``size`` sequences each, as they come."""
    return lambda samples: [list(range(i, min(i + size, len(samples)))) for i in range(0, len(samples), size)]


class PolicyMicroBatcher:
    """Cuts the samples of one policy by sequences, or by the positions that its forward computes for them.

    Args:
        module: the policy; its forward options decide what a sample costs.
        micro_batch_size: sequences, where there is no budget.
        budget: positions of one forward, or None.
        width: of the model's hidden states.
    """

    def __init__(self, module: PolicyModule, micro_batch_size: int, budget: int | None, width: int) -> None:
        self.module, self.budget, self.width = module, budget, width
        self._in_order = micro_batches_of_size(micro_batch_size)

    def __call__(self, samples: Sequence[TrainingSample]) -> list[list[int]]:
        """Indices of each micro-batch."""
        if self.budget is None:
            return self._in_order(samples)
        return by_tokens(samples, self.budget, self.module.options, self.width)

    def cost(self, group: Sequence[TrainingSample]) -> float:
        """Work of a group, by which groups are shared out; alike for all where they are shared out by number."""
        return 1.0 if self.budget is None else flops(group, self.module.options.share_prefix, self.width)

    def share(self, costs: Sequence[float], world_size: int) -> list[list[int]]:
        """Which groups each rank trains on, ascending: in equal numbers, or of equal work where there is a budget.

        Args:
            costs: :meth:`cost` of each group.
            world_size: ranks.
        """
        if self.budget is None:
            return [part.tolist() for part in np.array_split(np.arange(len(costs)), world_size)]
        return balance(costs, world_size)


def positions(samples: Sequence[TrainingSample], options: ForwardOptions) -> int:
    """Positions that one forward over the samples computes, padding included."""
    pieces = [piece for s in samples for piece in s.pieces]
    prompts = [len(p) for p in {prompt for prompt, _ in pieces}] if options.share_prefix else []
    rows = [len(ids) + (0 if options.share_prefix else len(prompt)) for prompt, ids in pieces]
    if options.packing:
        return sum(prompts) + sum(rows)
    return len(prompts) * max(prompts, default=0) + len(rows) * max(rows, default=0)


def flops(samples: Sequence[TrainingSample], share_prefix: bool, width: int) -> float:
    """Cost of the samples in tokens: FLOPs, over those that one token costs outside of attention.

    Per layer a token costs about 24 H^2 FLOPs in matrix products and 4 H for each token that it sees (H = ``width``),
    so that n tokens and m pairs cost ``n + m / (6 H)`` (Kaplan et al. 2020, table 1).
    """
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
    """Indices in ``count`` parts of nearly equal cost: dearest first, each to the cheapest part (Graham 1969).

    Ties go to the first part, so that the same costs give the same parts; each part is in ascending order.

    Example:
        balance([5, 4, 3, 3, 3], 2)  # [[0, 3], [1, 2, 4]]
    """
    parts: list[list[int]] = [[] for _ in range(count)]
    heap = [(0.0, n) for n in range(count)]
    for index in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, n = heapq.heappop(heap)
        parts[n].append(index)
        heapq.heappush(heap, (load + costs[index], n))
    return [sorted(part) for part in parts]


def by_tokens(samples: Sequence[TrainingSample], budget: int, options: ForwardOptions, width: int) -> list[list[int]]:
    """Micro-batches of at most ``budget`` positions and nearly equal flops; completions of a prompt stay together.

    A sequence is never cut: one longer than the budget is a micro-batch of its own.

    Args:
        samples: to be cut.
        budget: positions of one forward, padding included.
        options: optimisations of the forward, on which the positions depend.
        width: of the model's hidden states.
    """
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
    units = sorted(units, key=lambda u: max(len(samples[i].completion_ids) for i in u))
    for unit in units:
        joined = [*parts[-1], *unit] if parts else unit
        if parts and positions([samples[i] for i in joined], options) <= budget:
            parts[-1] = joined
        else:
            parts.append(list(unit))
    return parts
