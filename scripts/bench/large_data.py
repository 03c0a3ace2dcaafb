"""What large inputs cost: ``rlhf data check`` and the first step of a run on a million prompts, and ``rlhf report`` of
a run of thousands of steps; now and at a recorded commit. Seconds by the clock and of the processor, and peak memory of
the main process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from scripts.bench._big_inputs import grow_run, write_prompts
from scripts.bench.regression import ROOT, path_in, tree_of

RECORDED = "8419af403140"
"""Before rows and traces were read once."""
MEASURE = """
import resource, sys
from rlhf_core.cli.main import main
sys.argv[0] = "rlhf"
try:
    sys.exit(main())
finally:
    ours, children = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = sum(used.ru_utime + used.ru_stime for used in (ours, children))
    status = open("/proc/self/status").read()  # getrusage counts the parent's memory at the start, too
    print(f"used {seconds:.1f} {int(status.split('VmHWM:')[1].split()[0]) // 1024}", file=sys.stderr)
"""
GRPO = ("--algo", "grpo", "--reward", "exact", "--model", "pocket")


def command(tree: Path, *words: str) -> dict[str, float]:
    """Seconds and peak MB of ``rlhf`` with the files of a tree."""
    began = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": path_in(tree), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", MEASURE, *words],
        env={**environment, "RLHF_REPORT": "0"},
        cwd="/",
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"rlhf {' '.join(words)}:\n{done.stderr[-4000:]}")
    seconds, megabytes = done.stderr.strip().splitlines()[-1].split()[1:]
    waited = round(time.perf_counter() - began, 1)
    return {"seconds": waited, "processor_seconds": float(seconds), "peak_mb": int(megabytes)}


def both(words: Callable[[Path], Sequence[str]], before: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        folder, sides = Path(scratch), {"now": ROOT}
        if before and not tree_of(RECORDED, folder / "tree"):
            sides["before"] = folder / "tree"
        given = {name: words(folder / name) for name in sides}
        return {name: command(tree, *given[name]) for name, tree in sides.items()}


def check(rows: int, folder: Path) -> Sequence[str]:
    folder.mkdir(exist_ok=True)
    write_prompts(folder / "prompts.jsonl", rows)
    return "data", "check", str(folder / "prompts.jsonl"), *GRPO


def first_step(rows: int, folder: Path) -> Sequence[str]:
    folder.mkdir(exist_ok=True)
    write_prompts(folder / "prompts.jsonl", rows)
    data = ("--dataset", str(folder / "prompts.jsonl"), "--run-dir", str(folder / "run"))
    return "train", *GRPO, *data, "--set", "trainer.steps=1"


def report(steps: int, folder: Path) -> Sequence[str]:
    folder.mkdir(exist_ok=True)
    command(ROOT, *first_step(1000, folder))
    grow_run(folder / "run", folder / "long", steps)
    return "report", str(folder / "long")


def cases(rows: int = 1_000_000, steps: int = 4500, before: bool = True) -> dict[str, Callable[[], dict[str, Any]]]:
    """``rows`` of data, ``steps`` of the run that is reported (its trace has about 0.12 MB a step)."""
    words = {"data check": partial(check, rows), "first step": partial(first_step, rows)}
    words["report"] = partial(report, steps)
    return {name: partial(both, of_case, before) for name, of_case in words.items()}
