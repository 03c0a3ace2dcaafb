"""How often does the reward-hacking monitor alarm where nothing is hacked? Short runs whose reward is the truth.

    python scripts/studies/monitor_false_alarms.py --seeds 0 1 2 3 --steps 16

GRPO on pocket/arithmetic with the numeric verifier: what is optimised is what is wanted, so every alarm is a false one.
The second reward weighs the verifier's parts otherwise. The monitor runs in the training itself and only warns.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rlhf_core.runs.jsonl import read_jsonl

SIGNALS = ("length", "distribution", "divergence", "dominance")
MONITOR: dict[str, Any] = {
    "name": "hacking",
    "stop": False,
    "repeat_every": 1,
    "divergence": {"second": {"name": "verifier", "verifier": {"name": "numeric", "format_weight": 0.5}}},
}


def one(seed: int, steps: int, batch: int, root: Path) -> dict[str, Any]:
    """Train once; which signals alarmed, the highest level, and the accuracy before and after."""
    run, file = root / f"seed-{seed}", root / f"seed-{seed}.json"
    file.write_text(
        json.dumps(
            {
                "seed": seed,
                "threads": 1,
                "dataset": {"name": "pocket", "subset": "arithmetic"},
                "reward": "verifier",
                "trainer": {
                    "name": "grpo",
                    "steps": steps,
                    "rollout_batch_size": batch,
                    "micro_batch_size": batch,
                    "eval_samples": 0,
                    "checkpoint_every": 0,
                    "optimizer": {"learning_rate": 5e-4, "warmup_steps": 2},
                    "sampling": {"max_tokens": 16},
                },
                "monitors": [MONITOR],
            }
        )
    )
    done = subprocess.run(
        [sys.executable, "-m", "rlhf_core.cli.main", "train", "--config", str(file), "--run-dir", str(run)],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    told = [line for line in done.stderr.splitlines() if "hacking WARNING: " in line or "hacking HARD_STOP: " in line]
    rows = list(read_jsonl(run / "metrics.jsonl"))
    rewards = [float(r["reward/mean"]) for r in rows if "reward/mean" in r]
    found = {s for line in told for s in SIGNALS if re.search(rf"(hacking \w+:|;) {s}: ", line)}
    return {
        "seed": seed,
        "alarms": sorted(found),
        "level": max(r.get("hacking/level", 0.0) for r in rows),
        "reward_first": sum(rewards[:3]) / 3,
        "reward_last": sum(rewards[-3:]) / 3,
        "told": told,
    }


def main() -> None:
    """Run every seed, print the share of runs that each signal spoke in."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--batch", type=int, default=64, help="completions a step")
    parser.add_argument("--record", type=Path, help="write every figure here")
    args = parser.parse_args()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as root:
        for seed in args.seeds:
            results.append(one(seed, args.steps, args.batch, Path(root)))
            if args.record:
                args.record.write_text(json.dumps({"steps": args.steps, "batch": args.batch, "runs": results}) + "\n")
            print(json.dumps({k: v for k, v in results[-1].items() if k != "told"}), file=sys.stderr, flush=True)
    print("| alarm | clean runs in which it came |\n|---|---|")
    for signal in SIGNALS:
        print(f"| {signal} | {sum(signal in r['alarms'] for r in results)} of {len(results)} |")
    print(f"| HARD_STOP | {sum(r['level'] == 2 for r in results)} of {len(results)} |")


if __name__ == "__main__":
    main()
