"""A finished rollout batch as plain values and arrays, for a checkpoint, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from rlhf_core.trainers.online.collector import RolloutBatch
from rlhf_core.trainers.online.events import EventLog
from rlhf_core.trainers.online.rollout_group import RolloutGroup
from rlhf_core.types import FinishReason, Prompt, PromptGroup, Rollout, Score, ScoreStatus, Segment

Find = Callable[[str, str], Prompt]
"""(Source, prompt id) -> prompt."""


class Shelf:
    """Every rollout, score and group once; what holds them twice holds their numbers."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Any]] = {"rollouts": [], "scores": [], "groups": []}
        self._places: dict[int, int] = {}
        self._held: list[Any] = []
        """Keeps alive what ``_places`` names by address."""

    def put(self, kind: str, things: Sequence[Any], plain: Callable[[Any], Any]) -> list[int]:
        """Their numbers; a thing that is new is added in plain form."""
        for thing in things:
            if id(thing) not in self._places:
                self._places[id(thing)] = len(self.rows[kind])
                self.rows[kind].append(plain(thing))
                self._held.append(thing)
        return [self._places[id(thing)] for thing in things]

    def rollouts(self, things: Sequence[Rollout]) -> list[int]:
        """Numbers of some rollouts."""
        return self.put("rollouts", things, plain_rollout)

    def scores(self, things: Sequence[Score]) -> list[int]:
        """Numbers of some scores."""
        return self.put("scores", things, plain_score)

    def groups(self, things: Sequence[PromptGroup]) -> list[int]:
        """Numbers of some groups."""
        return self.put("groups", things, plain_group)


def pack(batch: RolloutBatch) -> dict[str, Any]:
    """A batch as a tree that :mod:`rlhf_core.runs.tree` can save; prompts by source and id."""
    shelf = Shelf()
    tree = {
        "groups": shelf.groups(batch.groups),
        "mine": shelf.groups(batch.mine),
        "offset": batch.offset,
        "rollouts": shelf.rollouts(batch.rollouts),
        "scores": shelf.scores(batch.scores),
        "aside": [
            [shelf.groups([s.group])[0], shelf.rollouts(s.rollouts), shelf.scores(s.scores)] for s in batch.aside
        ],
        "metrics": dict(batch.metrics),
        "version": batch.version,
        "notes": [[method, _numbered(method, arguments, shelf)] for method, arguments in batch.notes.rows],
    }
    return {**tree, "shelf": shelf.rows}


def _numbered(method: str, arguments: tuple[Any, ...], shelf: Shelf) -> list[Any]:
    if method == "rollouts":
        return [shelf.rollouts(arguments[0])]
    if method == "rewards":
        return [shelf.rollouts(arguments[0]), shelf.scores(arguments[1])]
    return list(arguments)


def unpack(tree: Mapping[str, Any], find: Find) -> RolloutBatch:
    """The batch that :func:`pack` took apart.

    Args:
        tree: as it was read back.
        find: gives the prompts; the run's dataset has been compared with that of then.
    """
    rollouts = [read_rollout(row) for row in tree["shelf"]["rollouts"]]
    scores = [read_score(row) for row in tree["shelf"]["scores"]]
    groups = [read_group(row, find) for row in tree["shelf"]["groups"]]

    def some(things: list[Any], numbers: Sequence[int]) -> list[Any]:
        return [things[n] for n in numbers]

    notes = EventLog()
    for method, arguments in tree["notes"]:
        kinds = (rollouts, scores) if method in ("rollouts", "rewards") else ()
        read = [some(kind, numbers) for kind, numbers in zip(kinds, arguments)] if kinds else arguments
        notes.rows.append((method, tuple(read)))
    aside = [RolloutGroup(groups[g], some(rollouts, r), some(scores, s)) for g, r, s in tree["aside"]]
    return RolloutBatch(
        some(groups, tree["groups"]),
        some(groups, tree["mine"]),
        some(rollouts, tree["rollouts"]),
        some(scores, tree["scores"]),
        tree["offset"],
        aside,
        dict(tree["metrics"]),
        tree["version"],
        notes,
    )


def plain_rollout(rollout: Rollout) -> dict[str, Any]:
    """A rollout's fields, token ids as arrays."""
    row = {f.name: getattr(rollout, f.name) for f in fields(Rollout)}
    ids = {name: np.asarray(row[name], np.int64) for name in ("prompt_ids", "completion_ids")}
    segments = [[*segment.span, segment.role] for segment in rollout.segments]
    return {
        **row,
        **ids,
        "finish_reason": rollout.finish_reason.value,
        "info": dict(rollout.info),
        "segments": segments,
    }


def read_rollout(row: Mapping[str, Any]) -> Rollout:
    """The rollout of :func:`plain_rollout`."""
    ids = {name: tuple(row[name].tolist()) for name in ("prompt_ids", "completion_ids")}
    segments = tuple(Segment((start, stop), role) for start, stop, role in row.get("segments", ()))
    return Rollout(**{**row, **ids, "finish_reason": FinishReason(row["finish_reason"]), "segments": segments})


def plain_score(score: Score) -> list[Any]:
    """A score's fields."""
    return [score.value, dict(score.parts), score.status.value, score.detail]


def read_score(row: Sequence[Any]) -> Score:
    """The score of :func:`plain_score`."""
    return Score(row[0], row[1], ScoreStatus(row[2]), row[3])


def plain_group(group: PromptGroup) -> list[Any]:
    """Source and id of its prompt, tokens and size."""
    return [group.prompt.source, group.prompt.id, np.asarray(group.token_ids, np.int64), group.group_size]


def read_group(row: Sequence[Any], find: Find) -> PromptGroup:
    """The group of :func:`plain_group`."""
    return PromptGroup(find(row[0], row[1]), tuple(row[2].tolist()), row[3])
