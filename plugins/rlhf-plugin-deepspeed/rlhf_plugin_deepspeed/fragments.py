"""Which elements of each parameter a rank steps: stages 1 and 2 cut a group's parameters, laid end to end, into a piece
per rank; stage 3 cuts every parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rlhf_core.distributed import OptimizerPlan


@dataclass(frozen=True, slots=True)
class Fragment:
    """Elements of one parameter."""

    name: str
    shape: tuple[int, ...]
    """Of the whole parameter."""
    group: int
    """Of the plan."""
    flat: int
    """Which of the tensors that this rank steps."""
    start: int
    """First element of the parameter, counted row by row; ``stop`` is one past the last. Equal where there is none."""
    stop: int
    offset: int
    """Where the first element lies in the tensor that is stepped."""

    @property
    def numel(self) -> int:
        return torch.Size(self.shape).numel()


@dataclass(frozen=True)
class Fragments:
    """What a rank steps, of every parameter of the plan, in its order."""

    of: Sequence[Fragment]
    stepped: Sequence[torch.Tensor]
    """The tensors that AdamW steps; their elements are those of the fragments, and padding."""
    groups: Sequence[int]
    """Of each such tensor, its group in the plan."""


def flat_fragments(module: torch.nn.Module, plan: OptimizerPlan, zero: Any, rank: int) -> Fragments:
    """Of stages 1 and 2."""
    parameters = dict(module.named_parameters())
    rows: list[Fragment] = []
    for number, group in enumerate(plan.groups):
        size, begins = int(zero.partition_size[number]), zero.round_robin_bit16_offsets[number]
        low, high = rank * size, (rank + 1) * size
        for name, begin in zip(group.names, begins, strict=True):
            parameter = parameters[name]
            start = min(max(low - begin, 0), parameter.numel())
            stop = max(min(high - begin, parameter.numel()), start)
            offset = max(begin - low, 0)
            rows.append(Fragment(name, tuple(parameter.shape), number, number, start, stop, offset))
    return Fragments(rows, list(zero.single_partition_of_fp32_groups), list(range(len(plan.groups))))


def cut_fragments(module: torch.nn.Module, plan: OptimizerPlan, zero: Any, rank: int) -> Fragments:
    """Of stage 3; arguments as of :func:`flat_fragments`."""
    parameters: dict[str, Any] = dict(module.named_parameters())
    rows: list[Fragment] = []
    for number, group in enumerate(plan.groups):
        for name in group.names:
            parameter = parameters[name]
            flat, offset, size = zero.grad_position[zero.get_param_id(parameter)]
            start = min(rank * size, parameter.ds_numel)
            stop = min(start + size, parameter.ds_numel)
            rows.append(Fragment(name, tuple(parameter.ds_shape), number, flat, start, stop, offset))
    stepped = list(zero.fp32_partitioned_groups_flat)
    groups = {row.flat: row.group for row in rows}
    return Fragments(rows, stepped, [groups[n] for n in range(len(stepped))])
