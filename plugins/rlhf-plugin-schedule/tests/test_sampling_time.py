"""With several ranks a step says how long this rank sampled, and how long it waited for whole weights besides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_core.rl.sources import CollectorSettings
from rlhf_core.training import trace as timer_module
from rlhf_core.training.trace import Timer
from rlhf_core.types.rollouts import SamplingParams
from rlhf_plugin_schedule.dynamic_collector import DynamicCollector


class Clock:
    """What the timer reads; only what is said to take time moves it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def pass_by(self, seconds: float) -> None:
        self.now_s += seconds

    @contextmanager
    def late_ranks(self) -> Iterator[None]:
        self.pass_by(3.0)
        yield


@pytest.mark.parametrize("ranks", [1, 2])
def test_waiting_is_told_from_sampling(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(timer_module, "time", SimpleNamespace(perf_counter=lambda: clock.now_s))
    unused: Any = None
    generator: Any = SimpleNamespace(sample=lambda *groups, **_: clock.pass_by(1.0) or [])
    rewards: Any = SimpleNamespace(score=lambda prompts, rollouts: [])
    comm: Any = SimpleNamespace(world_size=ranks, rank=0)
    group: Any = SimpleNamespace(prompt=None, group_size=0)
    collector = DynamicCollector(
        unused, generator, rewards, comm, CollectorSettings(1, SamplingParams()), lambda: clock.late_ranks()
    )
    timer = Timer()
    collector._sample(0, lambda *event: None, timer, [group], "a", 0)
    seconds = {"rollout": 4.0, "reward": 0.0}
    assert timer.seconds == (seconds if ranks == 1 else {**seconds, "sampling": 1.0})
