"""kill -9 at any moment, resume, and everything equals the uninterrupted run bit for bit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .cases import CASES, Case
from .runs import check_same, read_run

Words = Callable[[Case], list[str]]
Whole = Callable[[str], Path]
KILLED = ("killed-grpo",)
"""Of which a random moment is tried in every check; of the others before a release."""
OTHERS = sorted(name for name in CASES if name.startswith("killed-") and name not in KILLED)


def start(args: list[str], tmp: Path) -> subprocess.Popen[bytes]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "RLHF_CACHE": str(tmp / "cache"), "RLHF_HOME": str(tmp / "home")}
    return subprocess.Popen(
        [sys.executable, "-m", "rlhf_core.cli.main", "train", *args],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[bytes]) -> None:
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err.decode()[-2000:]


def kill_when(process: subprocess.Popen[bytes], ready: Callable[[], bool]) -> bool:
    """SIGKILL once ``ready``; returns whether it was still running then."""
    deadline = time.monotonic() + 240
    while not ready() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    alive = process.poll() is None
    process.send_signal(signal.SIGKILL) if alive else None
    process.communicate()
    return alive


def rows(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_text().count("\n") if path.is_file() else 0


def interrupted(args: list[str], run: Path, tmp: Path, moments: list[Callable[[], bool]]) -> int:
    """Kill at each moment, resume in between, finish; returns how many kills hit a live process."""
    hits, resume = 0, False
    for moment in moments:
        process = start(["--resume", str(run)] if resume else [*args, "--run-dir", str(run)], tmp)
        hits += kill_when(process, moment)
        resume = (run / "plan.json").is_file()
    finish(start(["--resume", str(run)] if resume else [*args, "--run-dir", str(run)], tmp))
    return hits


@pytest.mark.slow
@pytest.mark.long  # the same moments at random: below; resumed in this process: test_resume_matrix.py
@pytest.mark.parametrize("name", ["killed-several_updates", "killed-ensemble"])
def test_resume_is_exact(name: str, words: Words, whole: Whole, tmp_path: Path) -> None:
    run = tmp_path / "killed"
    moments = [lambda: rows(run) >= 4, lambda: any((run / "checkpoints").glob(".partial-*"))]
    assert interrupted(words(CASES[name]), run, tmp_path, moments) >= 1
    check_same(read_run(whole(name)), read_run(run))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*KILLED, *(pytest.param(n, marks=pytest.mark.long) for n in OTHERS)])
def test_resume_is_exact_at_random_moments(name: str, words: Words, whole: Whole, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    rng, run = random.Random(seed), tmp_path / "killed"
    print(f"seed {seed}")

    def after(seconds: float) -> Callable[[], bool]:
        begin: list[float] = []

        def ready() -> bool:
            if rows(run) and not begin:
                begin.append(time.monotonic())
            return bool(begin) and time.monotonic() - begin[0] > seconds

        return ready

    moments = [after(rng.uniform(0, 2)), lambda: any((run / "checkpoints").glob(".partial-*"))]
    interrupted(words(CASES[name]), run, tmp_path, moments)
    check_same(read_run(whole(name)), read_run(run))


@pytest.mark.slow
@pytest.mark.long  # what was killed and resumed in other processes is the run of this one: above
def test_same_seed_twice_is_the_same_run(words: Words, whole: Whole, tmp_path: Path) -> None:
    """In this process, after other runs, and in a new one."""
    finish(start([*words(CASES["killed-grpo"]), "--run-dir", str(tmp_path / "again")], tmp_path))
    check_same(read_run(whole("killed-grpo")), read_run(tmp_path / "again"))
