"""Rank 0 alone at work: the others wait for it however long it takes, and end with one message when it has ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from rlhf_core.distributed import peers as peers_module
from rlhf_core.distributed.group import LocalStrategy
from rlhf_core.distributed.rank_zero import alone
from rlhf_core.types.errors import DeadlineExceeded, OtherRankFailed
from tests.waiting import wait_for

from .test_launch import ranks_of
from .test_stalled_rank import two as two

SCRIPT = Path(__file__).with_name("rank_zero.py")


Pairs = dict[str, list[subprocess.Popen[str]]]


@contextmanager
def ranks(*words: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes, each a rank, around a store of this process; a rank that is killed is reaped by nobody."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60), wait_for_workers=False)
    variables = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(server.port),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), *words],
            env={**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def waited_s(text: str, start: str) -> float:
    found = re.search(rf"{start} after ([0-9.]+) s", text)
    assert found is not None, text
    return float(found.group(1))


@pytest.fixture(scope="module")
def pairs() -> Iterator[Pairs]:
    """Two ranks for every test, all past their first collective; they wait at the same time."""
    words = {"work": ("work", "6"), "fail": ("fail", "5"), "killed": ("work", "300"), "stopped": ("work", "300")}
    with ExitStack() as stack:
        started: Pairs = {}
        for name, does in words.items():
            zero, _ = started[name] = stack.enter_context(ranks(*does, "4"))
            assert zero.stdout is not None
            while not (line := zero.stdout.readline()).startswith("pid "):
                assert line, "rank 0 ended"
        yield started


@pytest.mark.slow
def test_work_may_take_longer_than_a_collective(pairs: Pairs) -> None:
    zero, one = pairs["work"]
    assert waited_s(zero.communicate(timeout=90)[0], "rank 0 went on") >= 6
    assert waited_s(one.communicate(timeout=90)[0], "rank 1 went on") >= 6
    assert (zero.returncode, one.returncode) == (0, 0)


@pytest.mark.slow
def test_a_rank_0_that_ends_or_stops_is_named(pairs: Pairs) -> None:
    cases = {
        "killed": (signal.SIGKILL, "its process has ended"),
        "stopped": (signal.SIGSTOP, "it says nothing more"),
    }
    time.sleep(2 * peers_module.BEAT_S)
    for name, (signal_number, _) in cases.items():
        os.kill(pairs[name][0].pid, signal_number)
    for name, (_, cause) in cases.items():
        one = pairs[name][1]
        said, _ = one.communicate(timeout=90)
        assert one.returncode == 1
        assert said.count("error of rank 1") == 1
        assert "DeadlineExceeded: rank 1 waited" in said
        assert "for rank 0 in " in said
        assert "benchmarks" in said or "the first of them" in said
        assert cause in said
        assert "rank 1: thread MainThread" in said
        assert "rank 0: did not say" in said


@pytest.mark.slow
def test_an_error_of_rank_0_ends_the_others_at_once(pairs: Pairs) -> None:
    zero, one = pairs["fail"]
    said = one.communicate(timeout=90)[0]
    assert "error of rank 0 after 5.0 s: OSError: no space left" in zero.communicate(timeout=90)[0]
    cause = "rank 0 failed while the other ranks waited for it (the first of them): OSError: no space left"
    assert f"OtherRankFailed: {cause}" in said


def test_works_are_left_in_order(two: Any) -> None:
    zero, one = two
    assert one.done(1) is None
    first, second = zero.leave_section(), zero.leave_section()
    zero.report_done(first, "")
    wait_for(lambda: one.done(first) == "", "the end of the first")  # a store answers before it has written
    assert one.done(second) is None
    zero.report_done(second, "OSError: no space left\non the device")
    wait_for(lambda: one.done(second) == "OSError: no space left\non the device", "the end of the second")


def test_nothing_is_waited_for_without_other_ranks() -> None:
    with alone(LocalStrategy(), "benchmarks"):
        pass


@pytest.mark.slow
def test_a_wait_for_a_store_that_is_gone_says_so(two: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlhf_core.distributed.rank_zero import await_rank_zero

    _, one = two

    def gone(work: int) -> str:
        raise RuntimeError("Connection was likely closed")

    monkeypatch.setattr(one, "done", gone)
    with pytest.raises(DeadlineExceeded, match="benchmarks"), await_rank_zero("benchmarks", 1, one, 0.5):
        pass
    monkeypatch.setattr(one, "done", lambda work: "OSError: full")
    with pytest.raises(OtherRankFailed, match="OSError: full"), await_rank_zero("benchmarks", 1, one, 0.5):
        pass


SLOW = """
import os, time
from rlhf_core.config import ComponentConfig

class SlowConfig(ComponentConfig):
    name: str = "slow"
    seconds: float = 0.0

    def build(self, ctx):
        return Slow(self.seconds)

class Slow:
    def __init__(self, seconds):
        self.seconds, self.calls = seconds, 0

    def evaluate(self, engine, policy_version):
        self.calls += 1
        if self.calls == 1:
            with open("benchmark", "x") as file:
                file.write(str(os.getpid()))
            time.sleep(self.seconds)
        return {"calls": self.calls}
"""


@contextmanager
def run_with_a_slow_benchmark(folder: Path, seconds: int, timeout_s: int) -> Iterator[subprocess.Popen[str]]:
    """`rlhf train` on two ranks, one step; whatever is left of it is killed."""
    info = folder / "acme_slow-1.0.dist-info"
    info.mkdir()
    (folder / "acme_slow.py").write_text(SLOW)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-slow\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rlhf.benchmark]\nslow = acme_slow:SlowConfig\n")
    (folder / "run.yaml").write_text(f"benchmarks: [{{name: slow, seconds: {seconds}}}]\n")
    settings = (
        "threads=1", "reward.workers=1", "trainer.steps=1", "trainer.rollout_batch_size=16", "trainer.eval_samples=0",
        "trainer.sampling.max_tokens=8", "dataset.limit=64", f"strategy.timeout_s={timeout_s}",
    )  # fmt: skip
    words = ["train", "--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic", "--nproc", "2"]
    words += [word for setting in settings for word in ("--set", setting)]
    process = subprocess.Popen(
        [sys.executable, "-m", "rlhf_core.cli.main", *words, "--config", "run.yaml", "--run-dir", str(folder / "run")],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "RLHF_HOME": str(folder / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        for pid in (process.pid, *ranks_of(folder / "run")):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.slow
@pytest.mark.long  # two ranks without a run: test_work_may_take_longer_than_a_collective
def test_a_run_whose_benchmark_takes_longer_than_a_collective(tmp_path: Path) -> None:
    with run_with_a_slow_benchmark(tmp_path, seconds=32, timeout_s=25) as process:
        _, err = process.communicate(timeout=280)
        assert process.returncode == 0, err
        assert '"eval/slow/calls": 2.0' in (tmp_path / "run" / "metrics.jsonl").read_text()


@pytest.mark.slow
@pytest.mark.long  # two ranks without a run: above; a run whose rank 0 is killed: test_killed_ranks.py
def test_a_run_whose_rank_0_is_killed_in_a_benchmark(tmp_path: Path) -> None:
    with run_with_a_slow_benchmark(tmp_path, seconds=600, timeout_s=600) as process:
        place = tmp_path / "benchmark"
        wait_for(lambda: place.exists() and place.read_text(), "the benchmark", 200)
        os.kill(int(place.read_text()), signal.SIGKILL)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 1
        assert err.count("error: ") == 1, err
        assert not ranks_of(tmp_path / "run")
