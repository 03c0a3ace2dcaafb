"""A rollout batch that other ranks sampled, divided among the ranks of now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlhf_core.runs.events import RECORDS, Event
from rlhf_core.training.rollout_batch import RolloutBatch, batch_of, cut_groups, share_bounds


def reshard_batch(parts: Sequence[RolloutBatch], rank: int, world_size: int) -> RolloutBatch:
    """This rank's share of a batch, as if so many ranks had sampled it.

    Args:
        parts: what each of the ranks that sampled it has, in their order.
        rank: this one.
        world_size: ranks now.
    """
    groups = parts[0].groups
    sampled = [group for part in parts for group in cut_groups(part.own_groups, part.rollouts, part.scores)]
    bounds = share_bounds(len(groups), world_size)
    batch = batch_of(groups, sampled[bounds[rank] : bounds[rank + 1]], parts[0].version, rank, world_size)
    events = _events([part.events for part in parts], batch, rank, world_size)
    return replace(batch, set_aside=parts[0].set_aside, metrics=parts[0].metrics, events=events)


def _events(events_of_ranks: Sequence[Sequence[Event]], batch: RolloutBatch, rank: int, world_size: int) -> list[Event]:
    """Records, which all ranks have alike, and the hook events of this rank: of its own groups, and of its share of the
    prompts that were set aside."""
    rows_by_hook: dict[str, list[Any]] = {}
    for method, arguments in (event for events in events_of_ranks for event in events if event[0] not in RECORDS):
        rows_by_hook.setdefault(method, []).extend(zip(*arguments))
    trained, own = ({g.prompt.id for g in groups} for groups in (batch.groups, batch.own_groups))
    hook_events = []
    for method, rows in rows_by_hook.items():
        set_aside = list(dict.fromkeys(row[0].prompt_id for row in rows if row[0].prompt_id not in trained))
        bounds = share_bounds(len(set_aside), world_size)
        own_prompts = own.union(set_aside[bounds[rank] : bounds[rank + 1]])
        if own_rows := [row for row in rows if row[0].prompt_id in own_prompts]:
            hook_events.append((method, tuple(map(list, zip(*own_rows)))))
    return [*hook_events, *(event for event in events_of_ranks[0] if event[0] in RECORDS)]
