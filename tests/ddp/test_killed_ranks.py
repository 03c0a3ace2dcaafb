"""A rank is killed in forward, in backward and while a checkpoint is written, or leaves out a collective, under FSDP:
the run ends with one message, leaves nothing behind, and goes on to what an undisturbed run is, bit for bit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.resume.runs import Left, check_same, read_run

RUN = {
    "threads": 1,
    "strategy": "fsdp",
    "strategy.device": "cpu",
    "reward.workers": 1,
    "dataset.limit": 32,
    "trainer.steps": 5,
    "trainer.checkpoint_every": 1,
    "trainer.rollout_batch_size": 16,
    "trainer.group_size": 8,
    "trainer.sampling.max_tokens": 12,
    "trainer.sampling.temperature": 1.5,
    "trainer.eval_samples": 0,
    "trainer.optimizer.learning_rate": 1e-3,
    "trainer.optimizer.warmup_steps": 0,
}
BEGIN = ["--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic", "--nproc", "2"]
BEGIN += [word for name, value in RUN.items() for word in ("--set", f"{name}={value}")]
KILLED = [(1, 2, "forward"), (1, 3, "backward"), (1, 4, "checkpoint"), (0, 5, "checkpoint")]
"""(Rank, step, where): each run goes on from the one before."""


def train(faults: Path, *words: str, fault: str = "none:0:") -> subprocess.CompletedProcess[str]:
    """`rlhf train`; every process that comes of it has this test's folder in its environment."""
    command = [sys.executable, "-m", "rlhf_core.cli.main", "train", *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(faults), "ACME_FAULT": fault}
    env["ACME_FAULT_NOTE"] = str(faults / "note.json")
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=280, check=False)


def left_running(faults: Path) -> list[str]:
    """Command lines of processes that were started under :func:`train` and live."""
    lines: list[str] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if str(faults / "note.json").encode() in (folder / "environ").read_bytes():
                lines.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return lines


@pytest.mark.slow
@pytest.mark.long  # one of these moments, with batches in flight too: the test below
@pytest.mark.timeout(900)
def test_killed_in_forward_backward_and_checkpoint_a_run_goes_on_as_if_undisturbed(
    tmp_path: Path, faults: Path
) -> None:
    check_killed(tmp_path, faults, BEGIN, KILLED)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_with_batches_in_flight_a_run_goes_on_as_if_undisturbed(tmp_path: Path, faults: Path) -> None:
    words = [*BEGIN, "--set", "trainer.rollouts.max_staleness=1", "--set", "trainer.steps=3"]
    wanted = check_killed(tmp_path, faults, words, [(0, 3, "checkpoint")])
    assert wanted.at(3)["staleness/max"] == wanted.at(2)["buffer/batches"] == 1


def check_killed(tmp_path: Path, faults: Path, begin: list[str], killed: list[tuple[int, int, str]]) -> Left:
    """Every kill ends the run with one message; it goes on to what the undisturbed run, which is returned, is."""
    whole, run, note = tmp_path / "whole", tmp_path / "run", faults / "note.json"
    undisturbed = train(faults, *begin, "--run-dir", str(whole))
    assert undisturbed.returncode == 0, undisturbed.stderr
    for rank, step, where in killed:
        words = ["--resume", str(run)] if run.exists() else [*begin, "--run-dir", str(run)]
        done = train(faults, *words, fault=f"{rank}:{step}:{where}")
        assert json.loads(note.read_text())["where"] == where
        assert done.returncode == 1, done.stderr
        assert done.stderr.count("error: ") == 1, done.stderr
        assert f"rank {rank} ended with signal SIGKILL" in done.stderr
        assert f"rlhf train --resume {run}" in done.stderr
        assert json.loads((run / "failure.json").read_text())["status"] == "failed"
        assert left_running(faults) == []
        assert max(p.name for p in (run / "checkpoints").glob("step-*")) == f"step-{step - 1:06d}"
        note.unlink()
    resumed = train(faults, "--resume", str(run))
    assert resumed.returncode == 0, resumed.stderr
    wanted = read_run(whole)
    assert all(wanted.at(step)["grad_norm"] > 0 for step in range(1, killed[-1][1] + 1)), "every step learns"
    check_same(wanted, read_run(run))
    return wanted


@pytest.mark.slow
@pytest.mark.long  # a rank that hangs is found in the same way: test_runs_on_two_ranks.py
def test_a_rank_that_leaves_out_one_collective_is_found_by_step_and_stacks(tmp_path: Path, faults: Path) -> None:
    """Both wait then, each in another collective."""
    words = [*BEGIN, "--set", "strategy.timeout_s=15", "--run-dir", str(tmp_path / "run")]
    done = train(faults, *words, fault="1:2:all_reduce")
    assert done.returncode == 1, done.stderr
    assert re.search(r"rank (0|1) waited \d+ s \(deadline 15 s\) for .* in step 2", done.stderr)
    assert re.search(r"why: rank (0|1) is in step 2", done.stderr)
    zero, one = done.stderr.partition("rank 0: thread MainThread")[2].split("rank 1: thread MainThread")
    assert "in sum_over_ranks" in zero
    assert "in sum_over_ranks" not in one
    assert "in gather_objects" in one
    assert left_running(faults) == []
