"""A policy that learns from its steps' rewards against one that learns from the whole: GRPO on ``chain_steps``.

    python scripts/studies/step_rewards.py [--seeds 0 1 2] [--steps 30] [--out docs/studies/step_rewards]

For each seed the built-in model learns the form (supervised, a little), a process reward model learns to tell right
steps from wrong, and GRPO trains that policy with: a verifier of the answer; the process model's lowest step, one
advantage per completion; the process model's steps, one advantage per step. Gold, which none of them sees, checks
every step and the answer. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

WORLD = ("dataset.terms=[2, 3]", "dataset.chains=1500")
ARMS: Mapping[str, Sequence[str]] = {
    "verifier of the answer": ("--reward", "verifier"),
    "process model, lowest step": ("--reward", "prm"),
    "process model, step advantages": ("--reward", "prm", "--set", "advantage=step"),
    "process model, step advantages (min)": ("--reward", "prm", "--set", "advantage.name=step", "--set",
                                             "advantage.credit=min"),
}
GOLD = ("value", "answer", "steps")


def train(run: Path, seed: int, *options: str, sets: Sequence[str] = ()) -> dict[str, Any]:
    """Run one training through the command line and return its summary."""
    every = [*WORLD, f"dataset.seed={seed}", "trainer.checkpoint_every=0", "trainer.eval_every=0", "threads=1", *sets]
    command = [sys.executable, "-m", "rlhf_core.cli.main", "train", "--dataset", "chain_steps", "--seed", str(seed),
               "--run-dir", str(run), *options, *(x for s in every for x in ("--set", s))]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads((run / "summary.json").read_text())


def compare(seed: int, steps: int, root: Path) -> dict[str, Any]:
    """All arms from one supervised policy and one process model."""
    right_only = "dataset.carried=0"
    sft, prm = root / f"sft-{seed}", root / f"prm-{seed}"
    train(sft, seed, "--algo", "sft", sets=(right_only, "trainer.epochs=2", "trainer.optimizer.learning_rate=3e-4"))
    learned = train(prm, seed, "--algo", "prm", sets=("trainer.epochs=4", "dataset.slip=0.5"))
    arms: dict[str, Any] = {}
    for n, (name, options) in enumerate(ARMS.items()):
        path = (f"reward.path={prm / 'final'}",) if "prm" in options else ()
        found = train(root / f"arm-{seed}-{n}", seed, "--algo", "grpo", "--model", str(sft / "final"), *options,
                      sets=(right_only, f"trainer.steps={steps}", "trainer.eval_samples=200", "trainer.gold_samples=0",
                            "trainer.optimizer.learning_rate=3e-4", "trainer.sampling.max_tokens=96", *path))
        arms[name] = {when: {g: found[f"evaluation_{when}"][f"eval/gold/{g}"] for g in GOLD} for when in
                      ("before", "after")}
    return {"seed": seed, "process_model": learned["evaluation_after"], "arms": arms}


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Gold before and after, mean over seeds (lowest to highest)."""
    lines = ["| trained on | all right | answer right | steps right |", "|---|---|---|---|"]
    first = next(iter(ARMS))
    for label, name, when in [("nothing yet", first, "before"), *((n, n, "after") for n in ARMS)]:
        cells: list[str] = []
        for measure in GOLD:
            values = [r["arms"][name][when][measure] for r in results]
            cells.append(f"{sum(values) / len(values):.3f} ({min(values):.3f} to {max(values):.3f})")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run, print, record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("docs/studies/step_rewards"))
    args = parser.parse_args()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as root:
        for seed in args.seeds:
            results.append(compare(seed, args.steps, Path(root)))
            print(f"seed {seed} done", file=sys.stderr, flush=True)
    text = table(results)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    record = {"steps": args.steps, "cores": os.cpu_count(), "results": results}
    args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    said = f"`python scripts/studies/step_rewards.py --steps {args.steps}`, {len(args.seeds)} seeds"
    args.out.with_suffix(".md").write_text(f"{said}\n\n{text}\n")
    print(text)


if __name__ == "__main__":
    main()
