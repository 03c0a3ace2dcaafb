"""What each rank had when a checkpoint was made, for another number of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from rlhf_core.types.errors import RunDirError

OWN = ("rng", "hook_errors")
"""What may differ from rank to rank and means the same on any: nothing that is drawn from global generators decides
what a run samples or learns, whose seeds come from steps and prompts."""

DIVIDED = ("scheduler",)
"""What the trainer divides anew: rollouts that were sampled ahead."""


def for_ranks(ranks: Sequence[Mapping[str, Any]], world_size: int) -> list[Mapping[str, Any]]:
    """The states of so many ranks; those that there are if there are as many."""
    if len(ranks) == world_size:
        return list(ranks)
    first = ranks[0]
    shared = [key for key in first if key not in OWN + DIVIDED]
    differing = [
        f"{key}/{part}" if part else key
        for key in shared
        for part in _parts(first[key])
        if any(not same(_part(first[key], part), _part(rank[key], part)) for rank in ranks)
    ]
    if differing:
        raise RunDirError(
            f"{len(ranks)} processes kept different states of {', '.join(differing)}, which {world_size} cannot share",
            why="what a component counted or sampled belongs to one process",
            fix=f"--nproc {len(ranks)}, or a launcher with {len(ranks)} processes in all",
        )
    return [first] * world_size


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal, bit for bit."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and np.array_equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def _parts(state: Any) -> list[str]:
    return list(map(str, state)) if isinstance(state, Mapping) and state else [""]


def _part(state: Any, name: str) -> Any:
    return state.get(name) if name and isinstance(state, Mapping) else state
