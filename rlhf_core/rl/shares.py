"""A rollout batch that other ranks sampled, divided anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlhf_core.runs.events import RECORDS, Event
from rlhf_core.training.rollout_batch import RolloutBatch, RolloutGroup, batch_of, share_bounds


def divide_anew(parts: Sequence[RolloutBatch], rank: int, world_size: int) -> RolloutBatch:
    """This rank's share of a batch, as if so many ranks had sampled it.

    Args:
        parts: what each of the ranks that sampled it has, in their order.
        rank: this one.
        world_size: ranks now.
    """
    groups, sampled = parts[0].groups, [group for part in parts for group in _own(part)]
    bounds = share_bounds(len(groups), world_size)
    batch = batch_of(groups, sampled[bounds[rank] : bounds[rank + 1]], parts[0].version, rank, world_size)
    events = _events([part.events for part in parts], batch, rank, world_size)
    return replace(batch, filtered=parts[0].filtered, metrics=parts[0].metrics, events=events)


def _own(part: RolloutBatch) -> list[RolloutGroup]:
    ends = np.cumsum([0, *(g.group_size for g in part.own_groups)])
    rows = zip(part.own_groups, ends, ends[1:])
    return [RolloutGroup(group, part.rollouts[a:b], part.scores[a:b]) for group, a, b in rows]


def _events(kept: Sequence[Sequence[Event]], batch: RolloutBatch, rank: int, world_size: int) -> list[Event]:
    """Records, which all ranks have alike, and what listeners on this rank are told: of its own groups, and of its
    share of the prompts that were filtered."""
    told: dict[str, list[Any]] = {}
    for method, arguments in (event for events in kept for event in events if event[0] not in RECORDS):
        rows = told.setdefault(method, [])
        rows += zip(*arguments)
    trained, own = ({g.prompt.id for g in groups} for groups in (batch.groups, batch.own_groups))
    shares = []
    for method, rows in told.items():
        filtered = list(dict.fromkeys(row[0].prompt_id for row in rows if row[0].prompt_id not in trained))
        bounds = share_bounds(len(filtered), world_size)
        here = own.union(filtered[bounds[rank] : bounds[rank + 1]])
        if mine := [row for row in rows if row[0].prompt_id in here]:
            shares.append((method, tuple(map(list, zip(*mine)))))
    return [*shares, *(event for event in kept[0] if event[0] in RECORDS)]
