"""Runs of a sweep, several at once, each in a process of its own; one that fails leaves the others alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_plugin_recipes.process import start, terminated_as_interrupt
from rlhf_plugin_recipes.sweep.plan import SweepRun
from rlhf_plugin_recipes.training import train_arguments

POLL_S = 0.1


@dataclass
class Result:
    run: SweepRun
    status: str
    """``done``, ``cached``, ``failed``, ``interrupted`` or ``waiting``."""
    error: str = ""


@dataclass
class _Job:
    result: Result
    process: subprocess.Popen[bytes]
    log: Path


def run_all(runs: Sequence[SweepRun], jobs: int, logs: Path, say: Callable[[str], None]) -> list[Result]:
    """Run what is not finished; on Ctrl-C every run saves and ends, and what there is comes back."""
    results = [Result(run, "cached" if finished(run.folder) else "waiting") for run in runs]
    waiting = [result for result in results if result.status == "waiting"]
    working: list[_Job] = []
    logs.mkdir(parents=True, exist_ok=True)
    total = len(waiting)
    say(f"{len(runs)} runs: {len(runs) - total} finished before, {total} to do, {jobs} at a time")
    with terminated_as_interrupt():
        try:
            while waiting or working:
                while waiting and len(working) < jobs:
                    working.append(_begin(waiting.pop(0), logs))
                time.sleep(POLL_S)
                for job in [job for job in working if job.process.poll() is not None]:
                    working.remove(job)
                    _end(job)
                    left = len(waiting) + len(working)
                    run, why = job.result.run, f"\n  {job.result.error}" if job.result.error else ""
                    say(f"{run.point.label}, seed {run.seed}: {job.result.status}  ({total - left} of {total}){why}")
        except KeyboardInterrupt:
            _interrupt(working)
    return results


def finished(folder: Path) -> bool:
    """Whether a run has made all its steps, or was ended by one of its monitors, and has its final model."""
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return summary.get("status") in ("completed", "stopped") and (folder / "final").is_dir()


def _begin(result: Result, logs: Path) -> _Job:
    folder = result.run.folder
    if (folder / "plan.json").is_file():
        words = ["train", "--resume", str(folder)]
    else:
        file = logs / f"{folder.name}.yaml"
        words = ["train", *train_arguments(result.run.settings, file), "--run-dir", str(folder)]
    log = logs / f"{folder.name}.log"
    threads = os.environ.get("OMP_NUM_THREADS") or "1"  # not by `jobs`: the last digits depend on it
    with log.open("wb") as file:
        return _Job(result, start(words, file, subprocess.STDOUT, {"OMP_NUM_THREADS": threads}), log)


def _end(job: _Job) -> None:
    if job.process.returncode == 0:
        job.result.status = "done"
        return
    text = job.log.read_text(encoding="utf-8", errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    first = next((i for i, line in enumerate(lines) if line.startswith("error: ")), max(0, len(lines) - 1))
    job.result.status = "failed"
    job.result.error = " / ".join(line.strip() for line in lines[first : first + 3]) or "it said nothing"
    job.result.error += f" (exit code {job.process.returncode}; {job.log})"


def _interrupt(working: Sequence[_Job]) -> None:
    """Ctrl-C for all that run; a second one does not wait for them."""
    for job in working:
        job.process.send_signal(signal.SIGINT)
    try:
        for job in working:
            job.result.status = "done" if job.process.wait() == 0 else "interrupted"
    except KeyboardInterrupt:
        for job in working:
            job.process.kill()
            job.process.wait()
            job.result.status = "interrupted"
