"""One reward model against an ensemble in the pocket world: who hacks what, measured by the gold score.

    python scripts/studies/ensemble_vs_single.py [--seeds 0 1 2] [--steps 60] [--out docs/studies/ensemble_vs_single]

For each seed the ensemble is trained on the same pairs; the single reward model is its first member, so both
have seen the same kind of data. Writes OUT.json (every number), OUT.md (the table) and OUT.png (the plot).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_core.runs.jsonl import read_jsonl

CURVES = (
    ("gold", "eval/gold/value"),
    ("right", "eval/gold/right"),
    ("proxy reward", "eval/reward/mean"),
    ("hollow rate", "eval/gold/hollow"),
    ("words", "eval/gold/words"),
    ("KL", "kl"),
)


def train(name: str, args: Sequence[str], root: Path) -> Path:
    """Run one training through the command line and return its run directory."""
    run = root / name
    command = [sys.executable, "-m", "rlhf_core.cli.main", "train", "--algo", "grpo", "--run-dir", str(run), *args]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return run


def curves(run: Path) -> dict[str, list[list[float]]]:
    """Step and value of every curve."""
    rows = list(read_jsonl(run / "metrics.jsonl"))
    return {label: [[r["step"], r[key]] for r in rows if r.get(key) is not None] for label, key in CURVES}


def compare(seed: int, steps: int, root: Path) -> dict[str, Any]:
    """Train under the ensemble, then under its first member."""
    shared = [
        "--seed",
        str(seed),
        "--set",
        f"trainer.steps={steps}",
        "--set",
        "trainer.eval_every=5",
        "--set",
        "trainer.eval_samples=200",
        "--set",
        "trainer.checkpoint_every=0",
        "--set",
        "trainer.kl.coefficient=0",
    ]
    ensemble = train(f"ensemble-{seed}", ["--reward", "ensemble", *shared], root)
    summary = json.loads((ensemble / "summary.json").read_text())
    member = cache_folder(summary["reports"]["ensemble"]["digest"]) / "member_0"
    single = train(f"single-{seed}", ["--reward", "bradley_terry", "--set", f"reward.path={member}", *shared], root)
    return {
        "seed": seed,
        "ensemble": curves(ensemble),
        "single": curves(single),
        "heldout_accuracy": summary["reports"]["ensemble"]["heldout"],
    }


def cache_folder(digest: str) -> Path:
    """Where the reward plugin keeps a trained ensemble."""
    from rlhf_plugin_reward.store import cache_root

    return cache_root() / digest


def table(results: Sequence[dict[str, Any]]) -> str:
    """First, best and last value of each curve, mean over seeds (lowest to highest)."""
    lines = [
        "| measure | reward | at the start | best | at the end (lowest to highest seed) |",
        "|---|---|---|---|---|",
    ]
    for label, _ in CURVES:
        for reward in ("single", "ensemble"):
            series = [[v for _, v in r[reward][label]] for r in results]
            ends = [s[-1] for s in series]
            best = "" if label in ("hollow rate", "words", "KL") else f"{mean([max(s) for s in series]):.3f}"
            lines.append(
                f"| {label} | {reward} | {mean([s[0] for s in series]):.3f} | {best} | "
                f"{mean(ends):.3f} ({min(ends):.3f} to {max(ends):.3f}) |"
            )
    return "\n".join(lines)


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean."""
    return sum(values) / len(values)


def plot(results: Sequence[dict[str, Any]], path: Path) -> None:
    """One panel per curve, one thin line per seed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(2, 3, figsize=(12, 6), constrained_layout=True)
    for panel, (label, _) in zip(panels.flat, CURVES):
        for reward, colour in (("single", "tab:red"), ("ensemble", "tab:blue")):
            for n, result in enumerate(results):
                steps, values = zip(*result[reward][label])
                panel.plot(steps, values, color=colour, alpha=0.7, linewidth=1, label=reward if n == 0 else None)
        panel.set_title(label)
        panel.set_xlabel("step")
    panels.flat[0].legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run, print, record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("docs/studies/ensemble_vs_single"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        results = [compare(seed, args.steps, Path(root)) for seed in args.seeds]
    text = table(results)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps({"steps": args.steps, "results": results}) + "\n")
    args.out.with_suffix(".md").write_text(
        f"`python scripts/studies/ensemble_vs_single.py --steps {args.steps}`, {len(results)} seeds\n\n{text}\n"
    )
    plot(results, args.out.with_suffix(".png"))
    print(text)


if __name__ == "__main__":
    main()
