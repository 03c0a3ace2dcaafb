"""kill -9 at any moment, resume, and everything equals the uninterrupted run bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

ONLINE = [
    "--algo",
    "grpo",
    "--reward",
    "verifier",
    "--dataset",
    "pocket/arithmetic",
    "--set",
    "trainer.steps=6",
    "--set",
    "trainer.rollout_batch_size=16",
    "--set",
    "trainer.group_size=4",
    "--set",
    "trainer.eval_samples=4",
    "--set",
    "trainer.eval_every=2",
    "--set",
    "trainer.checkpoint_every=2",
]
VARIANTS = {
    "on_policy": ONLINE,
    "several_updates": [
        *ONLINE,
        "--set",
        "trainer.train_batch_size=8",
        "--set",
        "trainer.epochs_per_rollout_batch=2",
        "--set",
        "trainer.kl.coefficient=0.05",
    ],
    "lora": [*ONLINE, "--set", "model.lora.r=4"],
    "ensemble": [
        *(v.replace("verifier", "ensemble").replace("pocket/arithmetic", "pocket/assistant") for v in ONLINE),
        "--set",
        "reward.members=2",
        "--set",
        "reward.max_pairs=32",
        "--set",
        "reward.heldout_pairs=16",
        "--set",
        "reward.gate_quantile=0.9",
        "--set",
        "trainer.gold_samples=0",
    ],
    "sft": [
        "--algo",
        "sft",
        "--set",
        "trainer.max_steps=12",
        "--set",
        "trainer.checkpoint_every=3",
        "--set",
        "trainer.eval_samples=8",
    ],
    "reward_model": [
        "--algo",
        "reward_model",
        "--set",
        "trainer.max_steps=8",
        "--set",
        "trainer.checkpoint_every=2",
        "--set",
        "trainer.eval_samples=8",
        "--set",
        "trainer.batch_size=8",
        "--set",
        "dataset.limit=64",
    ],
}


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


def state(run: Path) -> dict[str, Any]:
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in metrics:
        row.pop("time", None)
    summary = json.loads((run / "summary.json").read_text())
    summary.pop("seconds")
    newest = sorted((run / "checkpoints").glob("step-*"))[-1]
    optimizer = load_file(str(newest / "state.safetensors"))
    return {
        "metrics": metrics,
        "summary": summary,
        "trace": (run / "trace.jsonl").read_text(),
        "samples": (run / "samples.jsonl").read_text(),
        "weights": load_file(str(run / "final" / "model.safetensors")),
        "optimizer": optimizer,
    }


def first_difference(a: Any, b: Any, at: str = "") -> str:
    if isinstance(a, dict) and isinstance(b, dict):
        return next(
            (first_difference(a.get(k), b.get(k), f"{at}.{k}") for k in {**a, **b} if a.get(k) != b.get(k)),
            "order of keys",
        )
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return next(first_difference(x, y, f"{at}[{i}]") for i, (x, y) in enumerate(zip(a, b)) if x != y)
    return f"{at}: {str(a)[:300]} != {str(b)[:300]}"


def same(a: dict[str, Any], b: dict[str, Any]) -> None:
    for key in ("metrics", "summary", "trace", "samples"):
        assert a[key] == b[key], f"{key}: {first_difference(a[key], b[key])}"
    for key in ("weights", "optimizer"):
        assert a[key].keys() == b[key].keys()
        assert all(a[key][k].equal(b[key][k]) for k in a[key]), key


def interrupted(args: list[str], run: Path, tmp: Path, moments: list[Callable[[], bool]]) -> int:
    """Kill at each moment, resume in between, finish; returns how many kills hit a live process."""
    hits, resume = 0, False
    for moment in moments:
        process = start(["--resume", str(run)] if resume else [*args, "--run-dir", str(run)], tmp)
        hits += kill_when(process, moment)
        resume = (run / "plan.json").is_file()
    finish(start(["--resume", str(run)] if resume else [*args, "--run-dir", str(run)], tmp))
    return hits


@pytest.mark.parametrize("variant", ["several_updates", pytest.param("ensemble", marks=pytest.mark.slow)])
def test_resume_is_exact(variant: str, tmp_path: Path) -> None:
    args, run = VARIANTS[variant], tmp_path / "killed"
    finish(start([*args, "--run-dir", str(tmp_path / "whole")], tmp_path))
    moments = [lambda: rows(run) >= 4, lambda: any((run / "checkpoints").glob(".partial-*"))]
    assert interrupted(args, run, tmp_path, moments) >= 1
    same(state(tmp_path / "whole"), state(run))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_resume_is_exact_at_random_moments(variant: str, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    rng, run = random.Random(seed), tmp_path / "killed"
    print(f"seed {seed}")
    finish(start([*VARIANTS[variant], "--run-dir", str(tmp_path / "whole")], tmp_path))

    def after(seconds: float) -> Callable[[], bool]:
        begin: list[float] = []

        def ready() -> bool:
            if rows(run) and not begin:
                begin.append(time.monotonic())
            return bool(begin) and time.monotonic() - begin[0] > seconds

        return ready

    moments = [after(rng.uniform(0, 2)) for _ in range(4)] + [lambda: any((run / "checkpoints").glob(".partial-*"))]
    interrupted(VARIANTS[variant], run, tmp_path, moments)
    same(state(tmp_path / "whole"), state(run))


def test_same_seed_twice_is_the_same_run(tmp_path: Path) -> None:
    for name in ("a", "b"):
        finish(start([*VARIANTS["on_policy"], "--run-dir", str(tmp_path / name)], tmp_path))
    same(state(tmp_path / "a"), state(tmp_path / "b"))
