"""Seconds per step against how stale rollouts may be: synchronous, and with a worker that samples beside the learner.

A synchronous run may use both cores in every operation, two threads that overlap have one each. Medians over the steps
in which the schedule has settled and over paired runs, in processes of their own, in turn.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rlhf_core.data.jsonl import read_jsonl

STALENESS = (0, 1, 2, 4)
REPEATS = int(os.environ.get("RLHF_BENCH_REPEATS", "3"))
STEPS = 12
SETTLED = 5
"""Steps left out: the first batches are all sampled before there is anything to overlap with."""
TIMES = ("step", "rollout", "reward", "update", "learner_wait", "worker_wait")
POCKET = ["--dataset", "pocket/arithmetic"]
SMALLER = ("rollout_batch_size=32", "micro_batch_size=8", "sampling.min_tokens=32", "sampling.max_tokens=32")
SMOLLM2 = [*POCKET, *(word for setting in SMALLER for word in ("--set", f"trainer.{setting}"))]


def run() -> dict[str, Any]:
    """Median seconds of each part of a step by model, threads and staleness."""
    cases = {"pocket": POCKET}
    if file := os.environ.get("RLHF_SMOLLM2_GGUF"):
        cases["smollm2"] = [*SMOLLM2, "--model", file]
    results: dict[str, Any] = {}
    for name, options in cases.items():
        keys = [(threads, staleness) for threads in (1, 2) for staleness in STALENESS]
        readings: dict[tuple[int, int], list[dict[str, float]]] = {key: [] for key in keys}
        for _ in range(REPEATS if name == "pocket" else 1):
            for threads, staleness in keys:
                readings[threads, staleness] += measure(options, threads, staleness)
        for (threads, staleness), rows in readings.items():
            medians = {name: round(statistics.median(r.get(name, 0.0) for r in rows), 3) for name in TIMES}
            results[f"{name}, threads {threads}, max_staleness {staleness}"] = medians
    return results


def measure(options: list[str], threads: int, staleness: int) -> list[dict[str, float]]:
    settings = ("eval_samples=0", "gold_samples=0", "checkpoint_every=0")
    varied = (f"steps={STEPS}", f"rollouts.max_staleness={staleness}")
    sets = [word for setting in (*settings, *varied) for word in ("--set", f"trainer.{setting}")]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = ["--algo", "grpo", "--reward", "verifier", *options, "--set", f"threads={threads}", *sets]
        command = [sys.executable, "-m", "rlhf_core.cli.main", "train", *words, "--run-dir", str(run)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        subprocess.run(command, check=True, capture_output=True, env=environment)
        rows = [r["time"] for r in read_jsonl(run / "metrics.jsonl") if "time" in r]
    return rows[SETTLED:]
