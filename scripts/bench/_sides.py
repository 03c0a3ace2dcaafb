"""Two processes that take turns at the same work, ours and TRL's, and what comes out of it.

Both live at the same time: while one makes a step the other waits for its turn, and the order is swapped in every
round, so whatever else the machine does meets both. Each side's first step is a short warm-up and not counted.
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

from rlhf_core.models import resolve_model
from scripts.bench._work import work_of

ROOT = Path(__file__).parents[2]
SIDES = {"ours": "scripts.bench._ours", "trl": "scripts.bench._trl"}


class Side:
    """A process of ``command`` with so many threads; its first step is a warm-up. ``folder`` must not exist."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        threads: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        folder.mkdir()
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            **(environment or {}),
        }
        self.log = (folder / "log.txt").open("w+")
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self.steps: list[dict[str, Any]] = []
        self.first = self.wait()
        """The warm-up."""

    def wait(self) -> dict[str, Any]:
        """Wait for the step in progress. The first answer is the warm-up."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            raise SystemExit(f"{self.name} ended early:\n{self.log.read()[-4000:]}")
        return json.loads(line)

    def step(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.steps.append(self.wait())

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def figures(self) -> dict[str, Any]:
        parts = {k: round(statistics.median(s["parts"][k] for s in self.steps), 3) for k in self.steps[0]["parts"]}
        tokens = self.steps[0]["tokens_generated"]
        return {
            "median_seconds": self.median("seconds"),
            "seconds": [round(s["seconds"], 2) for s in self.steps],
            "median_cpu_seconds": self.median("cpu_seconds"),
            "parts_median_seconds": parts,
            **({"tokens_per_second": {k: round(tokens / v, 1) for k, v in parts.items()}} if tokens else {}),
            "peak_rss_mb": round(max(s["peak_rss_mb"] for s in self.steps)),
            "tokens_generated": sorted({int(s["tokens_generated"]) for s in self.steps}),
            "tokens_trained": sorted({int(s["tokens_trained"]) for s in self.steps}),
        }

    def median(self, key: str) -> float:
        return round(statistics.median(s[key] for s in self.steps), 3)


def step_side(name: str, case: str, model: Path, folder: Path, steps: int, threads: int) -> Side:
    """A side that trains: ours or TRL's."""
    command = [sys.executable, "-m", SIDES[name], case, str(model), str(folder), str(steps)]
    return Side(name, command, folder, threads)


def module_side(name: str, module: str, words: Sequence[str], folder: Path, threads: int) -> Side:
    """A side that is a module with these arguments and, last, its folder."""
    return Side(name, [sys.executable, "-m", module, *words, str(folder)], folder, threads)


def as_folder(model: Path | str) -> Path:
    """Both sides read the same safetensors folder; a ``.gguf`` file is converted once."""
    return Path(resolve_model(str(model)).path).resolve()


def smollm2() -> Path:
    """The file or folder that ``RLHF_SMOLLM2_GGUF`` names."""
    model = os.environ.get("RLHF_SMOLLM2_GGUF")
    if not model:
        raise SystemExit("set RLHF_SMOLLM2_GGUF to the .gguf file (or folder) of SmolLM2-135M-Instruct")
    return Path(model)


def in_turns(ours: Side, theirs: Side, runs: int) -> None:
    """Alternate so many steps of each side, and end both."""
    for n in range(runs):
        for side in (ours, theirs) if n % 2 == 0 else (theirs, ours):
            side.step()
    ours.close()
    theirs.close()


def compare(case: str, model: Path | str, runs: int, threads: int) -> dict[str, Any]:
    """Alternate ``runs`` steps of each side, and compare."""
    with tempfile.TemporaryDirectory() as scratch:
        ours, trl = (step_side(name, case, as_folder(model), Path(scratch) / name, runs + 2, threads) for name in SIDES)
        in_turns(ours, trl, runs)
    if any(ours.steps[0][key] != trl.steps[0][key] for key in ("tokens_trained", "tokens_generated")):
        raise SystemExit(f"the two sides did not do the same work: {ours.figures()} {trl.figures()}")
    return {"work": work_of(case).what, **outcome(ours, trl, runs, threads)}


def outcome(ours: Side, trl: Side, runs: int, threads: int) -> dict[str, Any]:
    """Ratios of what the sides took, and their own figures."""
    a, b = ours.figures(), trl.figures()
    ratios = [t["seconds"] / o["seconds"] for o, t in zip(ours.steps, trl.steps, strict=True)]
    return {
        "speedup_vs_trl": round(statistics.median(ratios), 3),
        "speedup_by_round": [round(r, 3) for r in ratios],
        "speedup_of_parts": {
            k: round(b["parts_median_seconds"][k] / v, 2) for k, v in a["parts_median_seconds"].items()
        },
        "cpu_seconds_ratio": round(b["median_cpu_seconds"] / a["median_cpu_seconds"], 3),
        "peak_rss_of_trl": round(a["peak_rss_mb"] / b["peak_rss_mb"], 3),
        "ours": a,
        "trl": b,
        "threads": threads,
        "runs": runs,
        "load_average": [round(x, 2) for x in os.getloadavg()],
    }
