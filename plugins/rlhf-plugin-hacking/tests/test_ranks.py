"""On several ranks the monitor reads the completions of all: its state fits any number of ranks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_core.rewards import Score
from rlhf_core.rollouts import FinishReason
from rlhf_core.runs.checkpoint import for_ranks
from rlhf_plugin_hacking.config import DivergenceConfig, HackingConfig
from rlhf_plugin_hacking.monitor import HackingMonitor
from rlhf_plugin_hacking.second import Pairs, SecondReward
from rlhf_testing import make_context

METRICS = {"completion_length/mean": 50.0, "reward/mean": 0.5, "reward/std": 1.0}


class Rank:
    """Exchanges values with a rank in another thread."""

    def __init__(self, rank: int, rows: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.world_size, self.rows, self.barrier = rank, len(rows), rows, barrier

    def gather_objects(self, value: Any) -> list[Any]:
        self.rows[self.rank] = value
        self.barrier.wait(10)
        rows = list(self.rows)
        self.barrier.wait(10)
        return rows


class Second(SecondReward):
    """Scores a completion by its length."""

    def __init__(self, config: DivergenceConfig, fails: bool = False) -> None:
        self.config, self.fails, self.problem = config, fails, ""

    def measure(self, scored: Sequence[tuple[Any, Score]], ranks: int, rank: int) -> Pairs:
        if self.fails:
            raise OSError("the service is gone")
        values = [(float(score.value or 0.0), float(len(rollout.completion_ids))) for rollout, score in scored]
        return Pairs(values, missing=rank)


def scored(prompt: str, *lengths: int) -> list[tuple[Any, Score]]:
    tokens = [(1,) * length for length in lengths]
    return [(SimpleNamespace(prompt_id=prompt, completion_ids=t, finish_reason=FinishReason.EOS), Score(len(t) / 7))
            for t in tokens]  # fmt: skip


def monitors(count: int, failing: int = -1) -> list[HackingMonitor]:
    config, rows, barrier = HackingConfig(), [None] * count, threading.Barrier(count)
    built = [HackingMonitor(config, make_context().with_(strategy=Rank(n, rows, barrier))) for n in range(count)]
    assert config.divergence is not None
    for rank, monitor in enumerate(built):
        monitor.second = Second(config.divergence, fails=rank == failing)
    return built


def observe(built: Sequence[HackingMonitor], shares: Sequence[list[tuple[Any, Score]]]) -> list[Any]:
    def step(monitor: HackingMonitor, share: list[tuple[Any, Score]]) -> Any:
        monitor.rlhf_rewards_ready(SimpleNamespace(rollouts=[r for r, _ in share], scores=[s for _, s in share]))
        try:
            return monitor.observe(1, METRICS)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(built)) as pool:
        return list(pool.map(step, built, shares))


@pytest.mark.parametrize("empty", [False, True], ids=["both ranks sample", "one rank samples"])
def test_every_rank_keeps_what_one_process_would(empty: bool) -> None:
    shares = [scored("a", 100, 120), [] if empty else scored("b", 10, 35)]
    two, single = monitors(2), monitors(1)
    observe(two, shares)
    observe(single, [[*shares[0], *shares[1]]])
    first, second = (monitor.state_dict() for monitor in two)
    assert first == second == single[0].state_dict()
    ranks = [{"components": {"monitor/hacking": state}, "rng": n} for n, state in enumerate((first, second))]
    assert len(for_ranks(ranks, 3)) == 3, "a run goes on with another number of ranks"


def test_a_rank_that_cannot_measure_lets_no_other_wait() -> None:
    own, others = observe(monitors(2, failing=1), [scored("a", 10, 20), scored("b", 10, 20)])[::-1]
    assert isinstance(own, OSError)
    assert str(others) == "rank 1: OSError: the service is gone"


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_ranks_share_the_samples_of_a_step(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf_plugin_hacking.second.score_samples", lambda _, samples, __: [Score(1.0)] * len(samples))
    second = Second(DivergenceConfig(samples=64))
    second.reward, second._prompts = None, {"a": None}  # type: ignore[dict-item]
    rollouts = [(SimpleNamespace(prompt_id="a", sample=lambda prompt: prompt), Score(0.0))] * 100
    counts = [len(SecondReward.measure(second, rollouts, ranks, rank).pairs) for rank in range(ranks)]  # pyright: ignore
    assert sum(counts) == 64
    assert max(counts) - min(counts) <= 1
