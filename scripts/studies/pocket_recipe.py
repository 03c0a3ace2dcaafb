"""How sure is the quickstart's win rate? The default command over several seeds, and with some settings changed.

python scripts/studies/pocket_recipe.py --seeds 0 1 2 --try trainer.kl.coefficient=0.05 --try trainer.steps=16
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SHOWN = (
    ("win rate", "gold_win_rate"),
    ("gold", "eval/gold/value"),
    ("right", "eval/gold/right"),
    ("hollow", "eval/gold/hollow"),
    ("words", "eval/gold/words"),
)


def train(seed: int, changes: Sequence[str], root: Path) -> dict[str, Any]:
    """One run; the summary's figures."""
    with tempfile.TemporaryDirectory(dir=root) as folder:
        run = Path(folder) / "run"
        command = [
            sys.executable,
            "-m",
            "rlhf_core.cli.main",
            "train",
            "--algo",
            "grpo",
            "--reward",
            "ensemble",
            "--seed",
            str(seed),
            "--run-dir",
            str(run),
            "--json",
        ]
        out = subprocess.run(
            [*command, *(p for c in changes for p in ("--set", c))],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=True,
        )
    summary = json.loads(out.stdout)
    after = summary["evaluation_after"]
    return {
        "seed": seed,
        "seconds": summary["seconds"],
        "gold_win_rate": summary["gold_win_rate"],
        "gold_win_rate_interval": summary["gold_win_rate_interval"],
        **after,
    }


def main() -> None:
    """Run every variant for every seed and print one row each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--try", dest="variants", action="append", default=[], metavar="a.b=c[,d.e=f]")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--record", type=Path, help="write every figure here")
    args = parser.parse_args()
    print("| changed | seed | " + " | ".join(name for name, _ in SHOWN) + " |\n|---|---|" + "---|" * len(SHOWN))
    rows: list[dict[str, Any]] = []
    jobs = [(seed, variant) for variant in ["", *args.variants] for seed in args.seeds]
    with tempfile.TemporaryDirectory() as root, ThreadPoolExecutor(args.jobs) as pool:
        results = pool.map(lambda job: train(job[0], [c for c in job[1].split(",") if c], Path(root)), jobs)
        for (seed, variant), row in zip(jobs, results):
            rows.append({"changed": variant, **row})
            if args.record:
                args.record.write_text(json.dumps(rows, indent=1) + "\n")
            cells = " | ".join(f"{row[key]:.3f}" for _, key in SHOWN)
            print(f"| {variant or 'nothing'} | {seed} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
