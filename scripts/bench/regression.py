"""Is ours now as fast as ours at a recorded commit? Both do the same work in turns, on the same machine at once.

The measure is processor seconds, and the ratio is of medians, so that another job on the machine meets both sides. What
is slower than :data:`LEAST` is measured a second time, and fails only if it is slower again.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.bench._guarded import KINDS
from scripts.bench._sides import as_folder, smollm2

ROOT = Path(__file__).parents[2]
RECORDED = "8419af403140"
"""The commit to compare with; a later one where something became faster, so that the gain is kept."""
LEAST = 0.9
TURNS = 5


class Side:
    """A process that works with the files of one tree."""

    def __init__(self, tree: Path, model: Path, folder: Path) -> None:
        folder.mkdir()
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        self.log = (folder / "log.txt").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(ROOT / "scripts/bench/_guarded.py"), str(model), str(folder)],
            cwd=folder,
            env={**os.environ, **threads, **offline, "PYTHONPATH": path_in(tree)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        if Path(self.answer()) != tree.resolve():
            raise SystemExit(f"{tree} is not what is measured")

    def answer(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            raise SystemExit(f"a side ended early:\n{self.log.read()[-4000:]}")
        return json.loads(line)

    def say(self, word: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def turn(self) -> float:
        self.say("go")
        return float(self.answer())


def path_in(tree: Path) -> str:
    """PYTHONPATH for a tree's core, plugins and extensions: the places that they have in this one."""
    ours = [Path(place).resolve() for place in sys.path if place]
    inside = [p.relative_to(ROOT) for p in ours if p.is_relative_to(ROOT) and "site-packages" not in p.parts]
    return os.pathsep.join(str(tree / place) for place in (Path(), *inside))


def tree_of(commit: str, folder: Path) -> str:
    """Write a commit's files into a folder; why that is not possible, "" if it is."""
    if subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True).returncode:
        return f"commit {commit} is not here (a shallow clone?)"
    parts = ("rlhf_core", "plugins", "eval", "extensions")
    archive = subprocess.run(["git", "archive", commit, *parts], cwd=ROOT, capture_output=True, check=True)
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return ""


def compared(now: Side, then: Side) -> dict[str, Any]:
    """Processor seconds of the turns of one kind of work, and how many times as fast it is now."""
    for side in (now, then):
        side.answer()  # the warm-up
    first = result = in_turns(now, then)
    if first["times_as_fast"] < LEAST:
        result = {**in_turns(now, then), "at_first": first}
    for side in (now, then):
        side.say("next")
    return result


def in_turns(now: Side, then: Side) -> dict[str, Any]:
    seconds: dict[Side, list[float]] = {now: [], then: []}
    for turn in range(TURNS):
        for side in (now, then) if turn % 2 == 0 else (then, now):
            seconds[side].append(side.turn())
    ratio = statistics.median(seconds[then]) / statistics.median(seconds[now])
    rounded = [[round(s, 2) for s in seconds[side]] for side in (now, then)]
    return {"times_as_fast": round(ratio, 3), "processor_seconds_now": rounded[0], "then": rounded[1]}


def run(commit: str = RECORDED, model: Path | None = None) -> dict[str, Any]:
    """Compare with another ``commit``, or on another ``model`` (a .gguf file or folder)."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if why := tree_of(commit, folder / "tree"):
            return {"note": f"nothing was compared: {why}"}
        weights = as_folder(model or smollm2())
        now, then = Side(ROOT, weights, folder / "now"), Side(folder / "tree", weights, folder / "then")
        results = {kind: compared(now, then) for kind in KINDS}
        for side in (now, then):
            side.process.wait(timeout=60)
    return {"commit": commit, **results}


def broken(results: Mapping[str, Any]) -> Sequence[str]:
    """What is slower than before."""
    slower = {kind: row["times_as_fast"] for kind, row in results.items() if isinstance(row, Mapping)}
    return [f"{kind}: {ratio} of the speed at {results['commit']}" for kind, ratio in slower.items() if ratio < LEAST]
