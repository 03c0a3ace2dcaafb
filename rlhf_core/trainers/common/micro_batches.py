"""Cuts a batch into micro-batches, and shares groups out to ranks, by what they cost.

The update is the same however a batch is cut (it is divided by a global denominator), so that cutting is only about
memory and time: a budget of positions bounds the first, equal flops per micro-batch and rank serves the second.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any

from rlhf_core.policy.forward_options import ForwardOptions
from rlhf_core.trainers.common.training_sample import TrainingSample

MicroBatcher = Callable[[Sequence[Any]], list[list[int]]]
"""Items -> indices of each micro-batch."""


def in_order(size: int) -> MicroBatcher:
    """MicroBatcher into ``size`` sequences each, as they come."""
    return lambda items: [list(range(i, min(i + size, len(items)))) for i in range(0, len(items), size)]


def positions(items: Sequence[TrainingSample], paths: ForwardOptions) -> int:
    """Positions that one forward over the items computes, padding included."""
    prompts = [len(p) for p in {i.prompt_ids for i in items}] if paths.share_prefix else []
    own = [len(i.completion_ids) if paths.share_prefix else len(i.prompt_ids) + len(i.completion_ids) for i in items]
    if paths.packing:
        return sum(prompts) + sum(own)
    return len(prompts) * max(prompts, default=0) + len(own) * max(own, default=0)


def flops(items: Sequence[TrainingSample], share_prefix: bool, width: int) -> float:
    """Cost of the items in tokens: FLOPs, over those that one token costs outside of attention.

    Per layer a token costs about 24 H^2 FLOPs in matrix products and 4 H for each token that it sees (H = ``width``),
    so that n tokens and m pairs cost ``n + m / (6 H)`` (Kaplan et al. 2020, table 1).
    """
    tokens = pairs = 0
    seen: set[tuple[int, ...]] = set()
    for item in items:
        before, own = len(item.prompt_ids), len(item.completion_ids)
        if not share_prefix or item.prompt_ids not in seen:
            tokens, pairs = tokens + before, pairs + before * before // 2
            seen.add(item.prompt_ids)
        tokens, pairs = tokens + own, pairs + own * before + own * own // 2
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


def by_tokens(items: Sequence[TrainingSample], budget: int, paths: ForwardOptions, width: int) -> list[list[int]]:
    """Micro-batches of at most ``budget`` positions and nearly equal flops; completions of a prompt stay together.

    A sequence is never cut: one longer than the budget is a micro-batch of its own.

    Args:
        items: to be cut.
        budget: positions of one forward, padding included.
        paths: optimisations of the forward, on which the positions depend.
        width: of the model's hidden states.
    """
    units = _units(items, budget, paths)
    if not paths.packing:
        return _filled(items, units, budget, paths)
    costs = [flops([items[i] for i in unit], paths.share_prefix, width) for unit in units]
    total = positions(items, paths)
    for count in range(min(len(units), max(1, -(-total // budget))), len(units) + 1):
        parts = [sorted(i for n in part for i in units[n]) for part in balance(costs, count)]
        if count == len(units) or all(positions([items[i] for i in part], paths) <= budget for part in parts):
            return parts
    return []


def _units(items: Sequence[TrainingSample], budget: int, paths: ForwardOptions) -> list[list[int]]:
    """Completions of a prompt, by length, as many as fit the budget."""
    prompts: dict[tuple[int, ...], list[int]] = {}
    for n, item in enumerate(items):
        prompts.setdefault(item.prompt_ids, []).append(n)
    units: list[list[int]] = []
    for group in prompts.values():
        unit: list[int] = []
        for n in sorted(group, key=lambda n: len(items[n].completion_ids)):
            if unit and positions([items[i] for i in [*unit, n]], paths) > budget:
                units.append(unit)
                unit = []
            unit.append(n)
        units.append(unit)
    return units


def _filled(
    items: Sequence[TrainingSample], units: list[list[int]], budget: int, paths: ForwardOptions
) -> list[list[int]]:
    """Padded rows: neighbours in length share a micro-batch, as many as fit."""
    parts: list[list[int]] = []
    units = sorted(units, key=lambda u: max(len(items[i].completion_ids) for i in u))
    for unit in units:
        joined = [*parts[-1], *unit] if parts else unit
        if parts and positions([items[i] for i in joined], paths) <= budget:
            parts[-1] = joined
        else:
            parts.append(list(unit))
    return parts
