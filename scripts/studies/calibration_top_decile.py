"""When a reward model is most certain, is it right as often as it thinks? Before and after a policy was trained on it.

    python scripts/studies/lambda_sweep.py --out runs/lambda_sweep
    python scripts/studies/calibration_top_decile.py --runs runs/lambda_sweep/*/single

Three kinds of pairs, all scored by the one reward model that a run was trained against: the annotator's held-out pairs;
the best- and worst-scored completion of each prompt in the run's first steps; the same in its last steps. The pairs of
a kind are cut into ten by margin; "implied" is sigmoid(margin) after Bradley and Terry, "right" is the share in which
the annotator (held-out) or the gold score (policy; ties are left out) agrees.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.api import BuildContext, DatasetSettings, Sample
from rlhf_core.config.run import RunConfig
from rlhf_core.data.library import Datasets
from rlhf_core.registry import Registry
from rlhf_core.runs.jsonl import read_jsonl

Pair = tuple[float, bool]
"""Margin (positive), and whether the higher-scored one is the better one."""


def heldout(run: Path) -> list[Pair]:
    """The annotator's held-out pairs, as the ensemble of which the run's reward model is a member kept them."""
    reward = Path(json.loads((run / "plan.json").read_text())["config"]["reward"]["path"])
    member = int(reward.name.removeprefix("member_"))
    sides = json.loads((reward.parent / "ensemble.json").read_text())["heldout"]
    gaps = [a[member] - b[member] for a, b in zip(sides["chosen"], sides["rejected"])]
    return [(abs(g), g > 0) for g in gaps if g != 0]


def sampled(run: Path, steps: Iterable[int], datasets: Datasets) -> list[Pair]:
    """Best and worst completion of each prompt of some steps."""
    prompts, wanted = {p.id: p for p in datasets.prompts("train")}, set(steps)
    found: list[Pair] = []
    for row in read_jsonl(run / "trace.jsonl"):
        if row.get("event") != "prompt" or row["step"] not in wanted:
            continue
        scored = sorted((c["score"], c["text"]) for c in row["completions"] if c["score"] is not None)
        golds: list[float] = []
        for _, text in (scored[-1], scored[0]):
            gold = datasets.gold(Sample(prompts[row["prompt_id"]], text))
            assert gold is not None, "pocket/assistant has a gold score"
            golds.append(float(gold["value"]))
        if golds[0] != golds[1] and scored[-1][0] > scored[0][0]:
            found.append((scored[-1][0] - scored[0][0], golds[0] > golds[1]))
    return found


def deciles(pairs: Sequence[Pair]) -> list[dict[str, float]]:
    """Ten equal parts by margin, smallest first."""
    ordered = sorted(pairs)
    cuts = np.linspace(0, len(ordered), 11).astype(int)
    parts = [ordered[a:b] for a, b in pairwise(cuts)]
    return [{"pairs": len(p), "margin": float(np.mean([m for m, _ in p])),
             "implied": float(np.mean([1 / (1 + np.exp(-m)) for m, _ in p])),
             "right": float(np.mean([r for _, r in p]))} for p in parts if p]


def calibration_error(rows: Sequence[dict[str, float]]) -> float:
    """Mean distance of right from implied over the deciles (the seed's ECE)."""
    return float(np.mean([abs(r["right"] - r["implied"]) for r in rows]))


def main() -> None:
    """Pool the runs, print a line per kind, record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=Path, nargs="+", required=True, help="runs under one reward model")
    parser.add_argument("--last", type=int, default=3, help="steps at the beginning and at the end")
    parser.add_argument("--record", type=Path, help="write every figure here")
    args = parser.parse_args()
    registry = Registry(disabled=())
    dataset = DatasetSettings.model_validate({"name": "pocket", "subset": "assistant"}, context={"registry": registry})
    ctx = BuildContext(config=RunConfig.model_construct(seed=0, dataset=dataset), registry=registry, seed=0)
    datasets = Datasets(dataset, ctx)
    pairs: dict[str, list[Pair]] = {"held-out pairs": [], "policy, first steps": [], "policy, last steps": []}
    for run in args.runs:
        end = int(json.loads((run / "summary.json").read_text())["steps"])
        pairs["held-out pairs"] += heldout(run)
        pairs["policy, first steps"] += sampled(run, range(1, 1 + args.last), datasets)
        pairs["policy, last steps"] += sampled(run, range(end - args.last + 1, end + 1), datasets)
    result: dict[str, Any] = {kind: deciles(rows) for kind, rows in pairs.items()}
    if args.record:
        args.record.write_text(json.dumps({"runs": [str(r.parent.name) for r in args.runs], "deciles": result}) + "\n")
    print("| pairs | number | right, all | top decile: margin | implied | right | gap | error over deciles |")
    print("|---|---|---|---|---|---|---|---|")
    for kind, rows in result.items():
        top, count = rows[-1], len(pairs[kind])
        share = np.mean([r for _, r in pairs[kind]])
        print(f"| {kind} | {count} | {share:.3f} | {top['margin']:.2f} | {top['implied']:.3f} | {top['right']:.3f} | "
              f"{top['right'] - top['implied']:+.3f} | {calibration_error(rows):.3f} |")


if __name__ == "__main__":
    main()
