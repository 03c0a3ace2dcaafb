"""Multi-turn GRPO on `lookup`: held-out success before and after, with controls.

    OMP_NUM_THREADS=2 python -m scripts.bench lookup_grpo folder=FOLDER

Runs `rlhf train --algo grpo --env lookup` once per arm and seed, each in a process of its own:

outcome    the defaults: one score for the whole episode
turn       advantage `turn`: each result that the plan leads to pays besides (`environment.step_reward`)
shuffled   scores given to other episodes of the batch: nothing can be learned
unmasked   results of tools left in the loss, as if the policy had written them

Held-out success is the share of right answers to 400 questions about people that no training question is about, one
episode each at temperature 1. A run that is there is used again and one that was cut off goes on, so the same command
finishes what is missing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.runs import wilson
from scripts.bench._lookup_unmasked import ENTRY

ROOT = Path(__file__).parents[2]
HELDOUT, CALLS = 400, (2, 3, 4, 5, 6)
SOURCES = [{"source": {"name": "lookup", "calls": [n], "prompts": HELDOUT}, "label": f"calls{n}"} for n in CALLS]
SHARED = {
    "dataset": json.dumps({"sources": SOURCES}),
    "trainer.eval_samples": HELDOUT,
    "trainer.checkpoint_every": 10,
}
ARMS: Mapping[str, Mapping[str, object]] = {
    "outcome": {},
    "turn": {"advantage.name": "turn", "environment.step_reward": 0.1, "reward.turn_weight": 0},
    "shuffled": {"reward": json.dumps({"name": "shuffled", "of": {"name": "environment"}})},
    "unmasked": {"agent.name": "unmasked"},
}


def train(folder: Path, seed: int, arm: str, settings: Sequence[str]) -> Path:
    """Make a run, go on with it, or find it."""
    if not (folder / "summary.json").is_file():
        changes = [f"{key}={value}" for key, value in {**SHARED, **ARMS[arm], "seed": seed}.items()] + [*settings]
        sets = [word for change in changes for word in ("--set", change)]
        new = ["--algo", "grpo", "--env", "lookup", *sets, "--run-dir", str(folder)]
        words = ["--resume", str(folder)] if (folder / "plan.json").is_file() else new
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(control(folder.parent))])}
        subprocess.run([sys.executable, "-m", "rlhf_core.cli.main", "train", *words], env=env, check=True)
    return folder


def control(folder: Path) -> Path:
    """A folder on the path that offers the agent of the arm `unmasked` as a plugin's component."""
    info = folder / "controls" / "lookup_controls-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lookup-controls\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY)
    return info.parent


def figures(run: Path) -> dict[str, Any]:
    """Held-out success at every evaluation, all and by the number of calls; times and tokens."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    held_out = [row for row in rows if "eval/reward/mean" in row]
    steps = [row for row in rows if "loss" in row]
    first, last = (float(held_out[n]["eval/reward/mean"]) for n in (0, -1))
    return {
        "before": first,
        "after": last,
        "after_interval": wilson(last, HELDOUT),
        "points": 100 * (last - first),
        "curve": {str(row["step"]): row["eval/reward/mean"] for row in held_out},
        "by_calls": {str(n): [row[f"eval/calls{n}/reward/mean"] for row in (held_out[0], held_out[-1])] for n in CALLS},
        "turns": [row.get("eval/turns/mean") for row in (held_out[0], held_out[-1])],
        "steps": len(steps),
        "seconds": json.loads((run / "summary.json").read_text())["seconds"],
    }


def cases(
    folder: Path, seeds: tuple[int, ...] = (0, 1, 2), settings: tuple[str, ...] = ()
) -> dict[str, Callable[[], dict[str, Any]]]:
    """Every arm with every seed; runs are kept in the folder, and ``settings`` go to each."""
    return {
        f"{arm}, seed {seed}": lambda arm=arm, seed=seed: figures(train(folder / f"{arm}-{seed}", seed, arm, settings))
        for seed in seeds
        for arm in ARMS
    }
