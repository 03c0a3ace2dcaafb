"""A rank that has stopped is named by the others, with the step and what it was in."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from rlhf_core.distributed import peers as peers_module
from rlhf_core.distributed.peers import RankMonitor, waiting
from rlhf_core.types.errors import DeadlineExceeded
from tests.waiting import wait_for

from .test_launch import logged, ranks_of, started


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RankMonitor, RankMonitor]]:
    """Rank 0 and rank 1, in this process, over a real store."""
    monkeypatch.setattr(peers_module, "BEAT_S", 0.02)
    monkeypatch.setattr(peers_module, "SILENT_S", 0.3)
    monkeypatch.setattr(peers_module, "STACKS_S", 1.0)
    places = iter(["step 3, play() of agent 'slow'"] * 10_000)
    monkeypatch.setattr(peers_module, "position", lambda: (next(places), 7.0))
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=5), wait_for_workers=False)
    stores = [dist.TCPStore("127.0.0.1", server.port, is_master=False) for _ in range(2)]
    ranks = [RankMonitor(store, rank, 2) for rank, store in enumerate(stores)]
    yield ranks[0], ranks[1]
    for rank in ranks:
        rank.close()


def test_a_rank_that_says_nothing_more_is_named(two: tuple[RankMonitor, RankMonitor]) -> None:
    zero, one = two
    wait_for(lambda: zero.heard[1].beat and one.heard[0].beat, "each has heard of the other", 10)
    assert zero.silent() == []
    assert zero.describe() == "rank 1 is in step 3, play() of agent 'slow', for 7 s"
    one.close()
    wait_for(zero.silent, "silence", 10)
    with pytest.raises(DeadlineExceeded) as caught, waiting("adding gradients", 0, zero, 6.0):
        raise RuntimeError("[unbound_buffer.cc:81] Timed out waiting 6000ms for recv operation to complete")
    text = str(caught.value)
    assert "for rank 1 in step 3, play() of agent 'slow': adding gradients" in text
    assert "rank 1 has said nothing for 0 s (stopped, swapped out or gone); it last said: step 3, play()" in text


def test_every_rank_tells_its_stack(two: tuple[RankMonitor, RankMonitor]) -> None:
    said = two[0].stacks()
    assert said.startswith("rank 0: thread MainThread\n")
    assert "\nrank 1: thread MainThread\n" in said
    assert said.count("in test_every_rank_tells_its_stack") == 2
    assert "in _exchange" not in said, "the thread that tells"


def test_a_silent_rank_tells_none(two: tuple[RankMonitor, RankMonitor]) -> None:
    two[1].close()
    assert two[0].stacks().endswith("\nrank 1: did not say (stopped, swapped out or gone)")


def test_an_error_of_this_rank_stays_what_it_is(two: tuple[RankMonitor, RankMonitor]) -> None:
    with pytest.raises(RuntimeError, match="not enough memory"), waiting("adding gradients", 0, two[0], 6.0):
        raise RuntimeError("not enough memory: you tried to allocate 8 bytes")


@pytest.mark.slow
@pytest.mark.long  # a rank that stopped, without a run: test_rank_zero.py; what is said of it: above
def test_sigstop(tmp_path: Path) -> None:
    with started(tmp_path, "--set", "strategy.timeout_s=15") as (process, run):
        wait_for(lambda: logged(run, '"step": 2'), "second step", 200)
        time.sleep(2 * peers_module.BEAT_S)  # what it said last may be from before the first step until it speaks again
        stopped = next(pid for pid in ranks_of(run) if rank_of(pid) == "1")
        os.kill(stopped, signal.SIGSTOP)
        wait_for(lambda: len(ranks_of(run)) < 2, "end of the other rank", 120)
        time.sleep(0.5)
        os.kill(stopped, signal.SIGCONT)  # else the launcher kills it only after another 30 s
        _, err = process.communicate(timeout=90)
        assert process.returncode == 1, err
        assert "for rank 1 in step " in err
        assert "rank 1 has said nothing for " in err
        assert "it last said: step " in err
        assert "rank 0: thread MainThread" in err
        assert "rank 1: did not say" in err


def rank_of(pid: int) -> str:
    variables = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return next(v.removeprefix("RANK=") for v in variables if v.startswith("RANK="))
