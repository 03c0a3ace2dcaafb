"""Kills a run with rollouts in flight at random moments, resumes it until it is done, and compares it with a whole one.

    python -m scripts.audit.kills --kills 20

Three kinds of run with the same seed: one uninterrupted, one synchronous (it says which prompts come in which order),
and killed ones, as many as it takes to kill a live process so often. Of each killed run, once it has finished: final
weights and the metrics of every step against the uninterrupted run, bit for bit; from ``trace.jsonl``: every step
once and in order, every prompt trained once and in the order of the synchronous run, by the same policy version.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from rlhf_core.data.jsonl import read_jsonl

Step = tuple[int, tuple[str, ...], tuple[int, ...]]
"""(Step, its prompts in order, the policy versions that sampled them)."""


def arguments(steps: int, staleness: int, more: list[str]) -> list[str]:
    """Options of a small run; no prompt comes twice in it."""
    settings = [
        f"steps={steps}",
        "rollout_batch_size=16",
        "group_size=4",
        "eval_samples=4",
        "eval_every=4",
        "checkpoint_every=2",
        "sampling.max_tokens=16",
        "optimizer.learning_rate=1e-3",
        f"rollouts.max_staleness={staleness}",
    ]
    return [
        "--algo",
        "grpo",
        "--reward",
        "verifier",
        "--dataset",
        "pocket/arithmetic",
        "--set",
        "threads=1",
        *(word for s in [*settings, *more] for word in ("--set", f"trainer.{s}")),
    ]


def start(words: list[str], home: Path) -> subprocess.Popen[bytes]:
    """Start ``rlhf train``."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "RLHF_CACHE": str(home / "cache"), "RLHF_HOME": str(home / "home")}
    return subprocess.Popen(
        [sys.executable, "-m", "rlhf_core.cli.main", "train", *words],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def finish(words: list[str], home: Path) -> float:
    """Run to the end; returns seconds."""
    began = time.monotonic()
    process = start(words, home)
    _, err = process.communicate(timeout=1800)
    if process.returncode != 0:
        raise SystemExit(f"the run failed:\n{err.decode()[-3000:]}")
    return time.monotonic() - began


def killed(words: list[str], run: Path, home: Path, delay: float) -> bool:
    """Start, and kill ``delay`` seconds after the run has first written something; whether it was alive then."""
    process, before = start(words, home), written(run)
    while written(run) == before and process.poll() is None:
        time.sleep(0.01)
    end = time.monotonic() + delay
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.002)
    alive = process.poll() is None
    if alive:
        process.send_signal(signal.SIGKILL)
    _, err = process.communicate()
    if not alive and process.returncode != 0:
        raise SystemExit(f"a resumed run failed:\n{err.decode()[-3000:]}")
    return alive


def written(run: Path) -> tuple[int, int]:
    """Time and size of the metrics, which a resume cuts back and every step lengthens."""
    path = run / "metrics.jsonl"
    return (path.stat().st_mtime_ns, path.stat().st_size) if path.is_file() else (0, 0)


def trained(run: Path) -> list[Step]:
    """What each step was trained on, from the trace."""
    found: list[Step] = []
    rows: list[dict[str, Any]] = []
    for row in read_jsonl(run / "trace.jsonl"):
        if row["event"] == "prompt":
            rows.append(row)
        elif row["event"] == "update":
            versions = sorted({c["policy_version"] for r in rows for c in r["completions"]})
            found.append((row["step"], tuple(r["prompt_id"] for r in rows), tuple(versions)))
            rows = []
    return found


def audit(run: Path, whole: Path, synchronous: Path) -> dict[str, bool]:
    """Everything that has to hold of a killed run that has finished."""
    steps, order = trained(run), [p for _, some, _ in trained(synchronous) for p in some]
    prompts = [p for _, some, _ in steps for p in some]
    mine, theirs = (load_file(r / "final" / "model.safetensors") for r in (run, whole))
    metrics = [
        [{k: v for k, v in row.items() if k != "time"} for row in read_jsonl(r / "metrics.jsonl")] for r in (run, whole)
    ]
    return {
        "weights": mine.keys() == theirs.keys() and all(mine[k].equal(theirs[k]) for k in mine),
        "metrics": metrics[0] == metrics[1],
        "steps_in_order": [s[0] for s in steps] == [*range(1, len(steps) + 1)],
        "prompts_once": len(set(prompts)) == len(prompts),
        "prompts_in_order": prompts == order,
        "versions": [s[2] for s in steps] == [s[2] for s in trained(whole)],
    }


def main() -> None:
    """Kill, resume, audit, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20, help="live processes to kill")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--staleness", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--set", action="append", default=[], dest="more", help="further trainer settings, key=value")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    words = arguments(options.steps, options.staleness, options.more)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        seconds = finish([*words, "--run-dir", str(home / "whole")], home)
        finish([*words, "--set", "trainer.rollouts.max_staleness=0", "--run-dir", str(home / "synchronous")], home)
        kills, resumes, found = 0, 0, []
        while kills < options.kills:
            run = home / f"killed-{len(found)}"
            ended = False
            while not ended:
                fresh = not (run / "plan.json").is_file()
                resumes += not fresh
                begin = [*words, "--run-dir", str(run)] if fresh else ["--resume", str(run)]
                if kills < options.kills:
                    ended = not killed(begin, run, home, rng.uniform(0, seconds / 4))
                    kills += not ended
                else:
                    finish(begin, home)
                    ended = True
            found.append(audit(run, home / "whole", home / "synchronous"))
    checks = {name: all(row[name] for row in found) for name in found[0]}
    result = {
        "kills": kills,
        "resumes": resumes,
        "runs": len(found),
        "steps": options.steps,
        "max_staleness": options.staleness,
        **checks,
    }
    print(json.dumps(result))
    sys.exit(0 if all(checks.values()) else 1)


if __name__ == "__main__":
    main()
