"""With several ranks a step says how long this rank sampled, and how long it waited for whole weights besides."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from rlhf_core.rl.dynamic_collector import CollectContext, DynamicCollector

from rlhf_core.rl.collector import CollectorSettings
from rlhf_core.training.timer import Timer
from rlhf_core.types.rollouts import SamplingParams


@contextmanager
def late_ranks() -> Iterator[None]:
    time.sleep(0.3)
    yield


@pytest.mark.parametrize("ranks", [1, 2])
def test_waiting_is_told_from_sampling(ranks: int) -> None:
    unused: Any = None
    generator: Any = SimpleNamespace(sample=lambda *groups, **_: time.sleep(0.1) or [])
    rewards: Any = SimpleNamespace(score=lambda prompts, rollouts: [])
    events: Any = SimpleNamespace(rollouts=lambda rows: None, rewards=lambda rows, scores: None)
    comm: Any = SimpleNamespace(world_size=ranks, rank=0)
    group: Any = SimpleNamespace(prompt=None, group_size=0)
    collector = DynamicCollector(
        unused, generator, rewards, comm, CollectorSettings(1, SamplingParams()), lambda: late_ranks()
    )
    timer = Timer()
    collector._sample([group], "a", CollectContext(0, events, timer), 0)
    assert timer.seconds["rollout"] >= 0.4
    assert ("sampling" in timer.seconds) == (ranks > 1)
    if ranks > 1:
        assert 0.1 <= timer.seconds["sampling"] <= timer.seconds["rollout"] - 0.3
