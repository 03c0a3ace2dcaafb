"""The schedule of rollouts that are sampled ahead, counted out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlhf_core.data.order import PromptOrder
from rlhf_core.rl.settings import RolloutSettings
from rlhf_core.rl.sources import PromptLoader
from rlhf_core.runs.session import Event
from rlhf_core.training.rollout_batch import RolloutBatch, RolloutGroup, batch_of, cut_groups, share_bounds
from rlhf_core.types.rollouts import (
    FinishReason,
    Prompt,
    PromptGroup,
    Rollout,
    Score,
    ScoreStatus,
    Segment,
    VersionSpan,
)
from rlhf_core.types.tree import load_tree, save_tree
from rlhf_plugin_schedule.buffered_source import RolloutBuffer, batch_state, read_batch


def prompt(name: str) -> Prompt:
    return Prompt(name, ({"role": "user", "content": name},), source="a")


def batch() -> RolloutBatch:
    return RolloutBatch([], [], [], [])


def walk(buffer: RolloutBuffer, steps: int, updates: int = 1) -> list[tuple[int, int, int, int]]:
    """(Batch, its staleness, batches evicted, batches waiting) of each step; every request is answered at once."""
    rows: list[tuple[int, int, int, int]] = []
    for step in range(steps):
        version = step * updates
        unread, _ = buffer.evict_stale(version)
        for _ in range(buffer.num_to_request(steps - step)):
            buffer.deliver(buffer.add(version).number, batch())
        entry = buffer.read()
        rows.append((entry.number, version - entry.version, len(unread), len(buffer.entries) - 1))
    return rows


@pytest.mark.parametrize(
    ("settings", "updates", "capacity"),
    [
        ({}, 1, 0),
        ({"max_staleness": 3}, 1, 3),
        ({"max_staleness": 8}, 4, 2),
        ({"max_staleness": 7}, 4, 1),
        ({"max_staleness": 1, "max_reads": 2}, 1, 0),
        ({"max_staleness": 5, "max_reads": 2}, 1, 2),
        ({"max_staleness": 5, "capacity": 1}, 1, 1),
    ],
)
def test_default_capacity_is_the_most_that_cannot_become_too_stale(
    settings: dict[str, int], updates: int, capacity: int
) -> None:
    chosen = RolloutSettings(**settings)
    assert chosen.ahead(updates) == capacity
    rows = walk(RolloutBuffer(chosen, capacity), 30, updates)
    assert max(r[1] for r in rows) <= chosen.max_staleness
    assert sum(r[2] for r in rows) == 0
    assert max(r[3] for r in rows) <= capacity, "it never grows beyond"
    if capacity:
        assert rows[10][1] >= capacity * updates, "and it is made use of"


def test_oldest_first_one_version_late() -> None:
    rows = walk(RolloutBuffer(RolloutSettings(max_staleness=1), 1), 5)
    assert rows == [(1, 0, 0, 1), (2, 1, 0, 1), (3, 1, 0, 1), (4, 1, 0, 1), (5, 1, 0, 0)]


def test_the_last_steps_request_nothing_that_nobody_would_read() -> None:
    buffer = RolloutBuffer(RolloutSettings(max_staleness=9, max_reads=2), 4)
    rows = walk(buffer, 7)
    assert buffer.last == 4, "seven reads of at most two each"
    assert [r[0] for r in rows] == [1, 1, 2, 2, 3, 3, 4]


def test_what_is_too_stale_goes_when_the_version_moves() -> None:
    buffer = RolloutBuffer(RolloutSettings(max_staleness=2, capacity=3), 3)
    for _ in range(4):
        buffer.deliver(buffer.add(0).number, batch())
    buffer.read()
    assert buffer.evict_stale(2)[0] == []
    assert [e.number for e in buffer.entries] == [2, 3, 4]
    buffer.add(2)
    unread, _ = buffer.evict_stale(3)
    assert [e.number for e in unread] == [2, 3, 4]
    assert [e.number for e in buffer.entries] == [5], "an unfinished one stays"
    assert buffer.num_to_request(9) == 3


def test_reads_that_staleness_forbids_are_counted() -> None:
    buffer = RolloutBuffer(RolloutSettings(max_staleness=1, max_reads=4, capacity=0), 0)
    buffer.add(0)
    buffer.read()
    assert buffer.evict_stale(1)[1] == 0
    assert buffer.evict_stale(2) == ([], 3)


def test_prompts_that_come_back_come_first_and_never_twice_in_a_batch() -> None:
    prompts = [prompt(f"p{n}") for n in range(6)]
    loader = PromptLoader(PromptOrder(prompts, {"a": 1.0}, 0, shuffle=False), lambda p: (1,), 2)
    first, second = loader.take(2), loader.take(2)
    loader.put_back([*first, *second, *first])
    ids = [[g.prompt.id for g in loader.take(3)] for _ in range(3)]
    assert ids == [["p0", "p1", "p2"], ["p3", "p0", "p1"], ["p4", "p5", "p0"]]
    loader.put_back([*first, *first])
    ids = [[g.prompt.id for g in loader.take(3)] for _ in range(2)]
    assert ids == [["p0", "p1", "p2"], ["p0", "p1", "p3"]], "put back twice, it comes twice"


def test_ranks_share_every_group_once() -> None:
    assert share_bounds(8, 3) == [0, 3, 6, 8]
    assert share_bounds(1, 3) == [0, 1, 1, 1]
    groups = [PromptGroup(prompt(f"p{n}"), (1,), size) for n, size in enumerate((2, 3, 1, 4))]
    shares = [cut_groups(part, ["r"] * 10, [Score(0.0)] * 10) for part in (groups[:2], groups[2:])]  # type: ignore[list-item]
    ranks = [batch_of(groups, own, 0) for own in shares]
    assert [(len(b.rollouts), len(b.scores)) for b in ranks] == [(5, 5), (5, 5)]
    assert ranks[1].group_ids == [0, 0, 1, 1, 1, 2, 3, 3, 3, 3]


def test_a_batch_in_a_checkpoint_and_back(tmp_path: Path) -> None:
    ask = prompt("x")
    group = PromptGroup(ask, (1, 2), 2)
    rollouts = [
        Rollout(
            "x",
            n,
            (1, 2),
            (5,) * n,
            np.full(n, -0.1, np.float32),
            3,
            FinishReason.LENGTH,
            "t",
            n,
            np.ones(n, np.bool_) if n else None,
            {"env_reward": 0.5} if n else {},
            (Segment((0, 1), "assistant"),) if n else (),
            versions=(VersionSpan((0, 1), 3),) if n else (),
        )
        for n in range(2)
    ]
    scores = [Score(0.25, {"a": 1.0}), Score.failed(ScoreStatus.TIMEOUT, "slow")]
    events: list[Event] = [
        ("rollouts", (rollouts,)),
        ("rewards", (rollouts, scores)),
        ("count", ({"n": 2},)),
        ("trace", ("dynamic_sampling", [{"event": "set_aside"}])),
    ]
    whole = RolloutBatch(
        [group], [group], rollouts, scores, [RolloutGroup(group, rollouts, scores)], {"m": 1.0}, 3, events
    )
    tree = batch_state(whole)
    assert len(tree["tables"]["Rollout"]) == 2, "each once"
    save_tree(tmp_path, "batch", tree)
    back = read_batch(load_tree(tmp_path, "batch"), {("a", "x"): ask})
    assert (back.groups, back.own_groups, back.scores, back.metrics, back.version) == (
        [group],
        [group],
        scores,
        {"m": 1.0},
        3,
    )
    for one, two in zip(rollouts, back.rollouts):
        assert one.completion_ids == two.completion_ids
        assert one.logprobs_T.tobytes() == two.logprobs_T.tobytes()
        assert (one.finish_reason, one.seed, one.policy_version) == (two.finish_reason, two.seed, two.policy_version)
        assert (one.mask_T is None) == (two.mask_T is None)
        assert (one.info, one.segments, one.versions) == (two.info, two.segments, two.versions)
    assert back.set_aside[0].rollouts[1] is back.rollouts[1]
    assert [method for method, _ in back.events] == ["rollouts", "rewards", "count", "trace"]
    assert back.events[1][1][0][1] is back.rollouts[1]
