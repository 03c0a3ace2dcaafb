"""Right answers by wrong steps: does a process reward model see them, and does an outcome model?

    python scripts/studies/prm_vs_orm.py [--seeds 0 1 2] [--out docs/studies/prm_vs_orm]

In the world of ``chain_steps`` (sums in a row, every step checkable) both are trained on the same solutions, trunk and
settings, twice: on right solutions and wrong ones with wrong answers, and on these with right answers by wrong steps
besides. Then both see held-out questions, each solved rightly, by an error carried to a wrong answer, by a slip that
nothing follows from, and by two errors that cancel. Writes OUT.json and OUT.md.
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

import numpy as np

MIXES: Mapping[str, Mapping[str, float]] = {"wrong answers only": {"carried": 2.0, "slip": 0.0, "cancelled": 0.0},
                                            "all kinds": {"carried": 1.0, "slip": 0.5, "cancelled": 0.5}}
WRONG = ("carried", "slip", "cancelled")
READINGS = ("orm", "min", "mean", "product", "last")
FALSE_ALARMS = 0.05


def train(algo: str, seed: int, mix: Mapping[str, float], size: Mapping[str, Any], run: Path) -> Path:
    """Train through the command line and return the model's folder."""
    sets = [f"dataset.{k}={v}" for k, v in {**mix, "seed": seed, "chains": size["chains"]}.items()]
    sets += [f"trainer.epochs={size['epochs']}", f"trainer.optimizer.learning_rate={size['learning_rate']}",
             "trainer.checkpoint_every=0", "trainer.eval_every=0", "threads=1"]
    command = [sys.executable, "-m", "rlhf_core.cli.main", "train", "--algo", algo, "--dataset", "chain_steps",
               "--seed", str(seed), "--run-dir", str(run), *(x for s in sets for x in ("--set", s))]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return run / "final"


def compare(seed: int, name: str, size: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Train both on one mix and let both judge the same held-out solutions."""
    from rlhf_core.api import Prompt
    from rlhf_plugin_prm.data.config import ChainStepsConfig
    from rlhf_plugin_prm.data.sources import ChainSource
    from rlhf_plugin_prm.examples import read_solutions
    from rlhf_plugin_prm.first_error import report
    from rlhf_plugin_prm.reward import StepReward, aggregate
    from rlhf_plugin_prm.reward_config import PrmRewardConfig

    config = ChainStepsConfig(chains=size["chains"], seed=seed, carried=1, slip=1, cancelled=1)
    rows = ChainSource(config).rows("heldout")
    prompts = [Prompt(r["id"], ({"role": "user", "content": r["prompt"]},), meta=r) for r in rows]
    solutions = read_solutions(prompts, "newline", str)
    asked = [(s.prompt, s.text, s.steps) for s in solutions]
    right: dict[str, list[Any]] = {}
    for algo in ("prm", "orm"):
        folder = train(algo, seed, MIXES[name], size, root / f"{algo}-{seed}-{name.replace(' ', '_')}")
        right[algo] = StepReward.load(PrmRewardConfig(path=str(folder), read="steps"), "cpu").probabilities(asked)
    kinds = [r["kind"] for r in rows]
    readings: dict[str, Any] = {}
    for how in READINGS:
        scores = np.array([aggregate(p, "last") for p in right["orm"]] if how == "orm" else
                          [aggregate(p, how) for p in right["prm"]])
        readings[how] = judged(scores, kinds)
    labels = [s.first_error for s in solutions]
    return {"seed": seed, "mix": name, "solutions": {k: kinds.count(k) for k in ("right", *WRONG)},
            "readings": readings, "first_error": {a: report(p, labels) for a, p in right.items()}}


def judged(scores: Any, kinds: Sequence[str]) -> dict[str, dict[str, float]]:
    """Of each wrong kind: the share flagged at a threshold that flags one right solution in 20, and the AUC."""
    of = {k: scores[[x == k for x in kinds]] for k in ("right", *WRONG)}
    threshold = float(np.quantile(of["right"], FALSE_ALARMS))
    return {k: {"flagged": round(float((of[k] < threshold).mean()), 4), "auc": round(auc(of["right"], of[k]), 4)}
            for k in WRONG}


def auc(high: Any, low: Any) -> float:
    """Probability that a right solution scores above a wrong one; ties count half (Mann and Whitney 1947)."""
    low = np.sort(low)
    below, upto = (np.searchsorted(low, high, side) for side in ("left", "right"))
    return float((below + upto).mean() / (2 * len(low)))


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Share flagged, mean over seeds and lowest to highest."""
    lines = ["| trained on | reading | wrong answer | slip, right answer | cancelled, right answer |",
             "|---|---|---|---|---|"]
    for mix in MIXES:
        rows = [r["readings"] for r in results if r["mix"] == mix]
        for how in READINGS:
            cells = [span([r[how][kind]["flagged"] for r in rows]) for kind in WRONG]
            label = "ORM" if how == "orm" else f"PRM, {how}"
            lines.append(f"| {mix} | {label} | {' | '.join(cells)} |")
    lines += ["", "First wrong step, F1 at the threshold chosen on the other half (chance):", "",
              "| trained on | PRM | ORM read at every step |", "|---|---|---|"]
    for mix in MIXES:
        rows = [r["first_error"] for r in results if r["mix"] == mix]
        cells = [f"{span([r[a]['crossed']['f1'] for r in rows])} ({np.mean([r[a]['chance'] for r in rows]):.2f})"
                 for a in ("prm", "orm")]
        lines.append(f"| {mix} | {' | '.join(cells)} |")
    return "\n".join(lines)


def span(values: Sequence[float]) -> str:
    """Mean, and lowest to highest."""
    return f"{np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    """Run, print, record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--chains", type=int, default=3000)
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--out", type=Path, default=Path("docs/studies/prm_vs_orm"))
    args = parser.parse_args()
    size = {"chains": args.chains, "epochs": args.epochs, "learning_rate": args.learning_rate}
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as root:
        for seed in args.seeds:
            results += [compare(seed, name, size, Path(root)) for name in MIXES]
            print(f"seed {seed} done", file=sys.stderr, flush=True)
    text = table(results)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    record = {"size": size, "mixes": MIXES, "false_alarms": FALSE_ALARMS, "cores": os.cpu_count(), "results": results}
    args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    said = f"`python scripts/studies/prm_vs_orm.py`, {len(args.seeds)} seeds. Share of held-out solutions flagged"
    args.out.with_suffix(".md").write_text(f"{said} when 1 right one in 20 is:\n\n{text}\n")
    print(text)


if __name__ == "__main__":
    main()
