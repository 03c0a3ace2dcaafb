"""What does an ensemble's uncertainty penalty buy? GRPO under one reward model and under `mean - lambda * std`.

    python scripts/studies/lambda_sweep.py --seeds 0 1 2 --lambdas 0 0.5 1 --steps 24 --out runs/lambda_sweep

Pocket world, no KL penalty, past the point where it pays. The ensemble of a seed is trained once and kept in the cache:
lambda changes only how its members are combined. ``single`` is its first member. Finished runs in --out are reused
if they have the same settings.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from rlhf_core.runs.jsonl import read_jsonl

TRAINER = {
    "name": "grpo",
    "rollout_batch_size": 256,
    "micro_batch_size": 64,
    "eval_every": 4,
    "eval_samples": 200,
    "gold_samples": 200,
    "checkpoint_every": 0,
    "optimizer": {"learning_rate": 5e-4, "warmup_steps": 2},
    "sampling": {"max_tokens": 48},
    "kl": {"coefficient": 0.0, "track": True},
}
SHOWN = ("value", "right", "hollow", "words")


def train(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """One run, or the summary of the one that is there.

    Raises:
        SystemExit: the one that is there was made with other settings.
    """
    file, text = folder.parent / f"{folder.name}.yaml", yaml.safe_dump(dict(config), sort_keys=False)
    if folder.exists() and (file.read_text() if file.is_file() else "") != text:
        raise SystemExit(f"{folder} was made with other settings; name another folder with --out")
    if not (folder / "summary.json").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        command = ["--config", str(file), "--run-dir", str(folder)]
        begun = (folder / "plan.json").is_file()
        subprocess.run(
            [sys.executable, "-m", "rlhf_core.cli.main", "train", *(["--resume", str(folder)] if begun else command)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return json.loads((folder / "summary.json").read_text())


def one_seed(seed: int, lambdas: Sequence[float], steps: int, root: Path) -> dict[str, Path]:
    """Folder of each variant: ``lambda 0.5``, ``single``."""
    common = {"seed": seed, "dataset": "pocket/assistant", "threads": 1, "trainer": {**TRAINER, "steps": steps}}
    found: dict[str, Path] = {}
    for value in lambdas:
        folder = found[f"lambda {value:g}"] = root / f"seed-{seed}" / f"lambda-{value:g}"
        train({**common, "reward": {"name": "ensemble", "uncertainty_penalty": value}}, folder)
    from rlhf_plugin_reward.store import cache_root

    summary = json.loads((next(iter(found.values())) / "summary.json").read_text())
    member = cache_root() / summary["reports"]["ensemble"]["digest"] / "member_0"
    found["single"] = root / f"seed-{seed}" / "single"
    train({**common, "reward": {"name": "bradley_terry", "path": str(member)}}, found["single"])
    return found


def figures(folder: Path) -> dict[str, Any]:
    """Gold score at the start, at its best and at the end; how the last policy writes; what members say."""
    rows = list(read_jsonl(folder / "metrics.jsonl"))
    gold = {int(r["step"]): r for r in rows if "eval/gold/value" in r}
    values = {step: float(r["eval/gold/value"]) for step, r in gold.items()}
    best, last = max(values, key=lambda s: values[s]), max(values)
    summary = json.loads((folder / "summary.json").read_text())
    return {
        "gold_start": values[0],
        "gold_best": values[best],
        "best_step": best,
        "gold_end": values[last],
        "steps": last,
        **{k: float(gold[last][f"eval/gold/{k}"]) for k in SHOWN[1:]},
        "kl": next(float(r["kl"]) for r in reversed(rows) if r.get("kl") is not None),
        "reward_start": float(gold[0]["eval/reward/mean"]),
        "reward_end": float(gold[last]["eval/reward/mean"]),
        "members_end": {k.rpartition("/")[2]: v for k, v in summary["evaluation_after"].items() if "/member_" in k},
        "win_rate": summary["gold_win_rate"],
        "seconds": summary["seconds"],
        "curve": [[step, value] for step, value in values.items()],
    }


COLUMNS = (
    ("gold at its best", "gold_best"),
    ("at step", "best_step"),
    ("gold at the end", "gold_end"),
    ("right", "right"),
    ("hollow", "hollow"),
    ("words", "words"),
    ("KL", "kl"),
)


def table(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """One row per variant: means over seeds, with the range."""
    variants = list(dict.fromkeys(v for seed in results.values() for v in seed))
    lines = ["| reward | " + " | ".join(name for name, _ in COLUMNS) + " |", "|---|" + "---|" * len(COLUMNS)]
    for variant in variants:
        rows = [seed[variant] for seed in results.values() if variant in seed]
        cells = [
            f"{fmean(r[k] for r in rows):.3f} ({min(r[k] for r in rows):.3f} to {max(r[k] for r in rows):.3f})"
            for _, k in COLUMNS
        ]
        lines.append(f"| {variant} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Train what is missing, print the table, record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--lambdas", type=float, nargs="+", default=[0.0, 0.5, 1.0])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--out", type=Path, default=Path("runs/lambda_sweep"))
    parser.add_argument("--record", type=Path, help="write every figure here")
    args = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    for seed in args.seeds:
        runs = one_seed(seed, args.lambdas, args.steps, args.out)
        results[str(seed)] = {name: figures(folder) for name, folder in runs.items()}
        if args.record:
            args.record.write_text(json.dumps({"steps": args.steps, "results": results}) + "\n")
        print(f"seeds so far: {', '.join(results)}\n\n{table(results)}\n", flush=True)


if __name__ == "__main__":
    main()
