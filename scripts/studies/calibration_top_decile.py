"""When a reward model is most certain, is it right as often as it thinks? Before and after a policy was trained on it.

    python scripts/studies/lambda_sweep.py --out runs/lambda_sweep
    python scripts/studies/calibration_top_decile.py --runs runs/lambda_sweep/*/{single,lambda-*}

Three kinds of pairs, all scored by the reward that a run was trained against: the annotator's held-out pairs; the best-
and worst-scored completion of each prompt in the run's first steps; the same in its last steps. The pairs of a kind are
cut into ten by margin; "implied" is sigmoid(margin) after Bradley and Terry, "right" is the share in which the
annotator (held-out) or the gold score (policy; ties are left out) agrees. An ensemble's scores are standardised, so its
margins are multiplied by its members' mean standard deviation, which makes logits of them again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.api import BuildContext, DatasetSettings, Sample
from rlhf_core.config.run import RunConfig
from rlhf_core.data.datasets import Datasets
from rlhf_core.registry import Registry
from rlhf_core.runs.jsonl import read_jsonl
from rlhf_plugin_reward.aggregate import aggregate, standardise
from rlhf_plugin_reward_eval.stats import Bin, deciles, expected_calibration_error, points

KINDS = ("held-out pairs", "policy, first steps", "policy, last steps")


class Judged:
    """A finished run and the scale of its reward.

    Args:
        run: a run of ``lambda_sweep.py``; the ``single`` beside it names the ensemble that both rewards come from.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.reward: dict[str, Any] = json.loads((run / "plan.json").read_text())["config"]["reward"]
        single = json.loads((run.parent / "single" / "plan.json").read_text())["config"]["reward"]
        folder = Path(single["path"])
        self.member = int(folder.name.removeprefix("member_")) if self.reward["name"] == "bradley_terry" else None
        self.meta: dict[str, Any] = json.loads((folder.parent / "ensemble.json").read_text())
        self.unit = 1.0 if self.member is not None else float(np.mean(self.meta["std"]))

    def heldout(self) -> list[float]:
        """Margins (logits) of the annotator's held-out pairs, chosen over rejected."""
        sides: list[Any] = []
        for side in ("chosen", "rejected"):
            raw_NK = np.array(self.meta["heldout"][side])
            if self.member is not None:
                sides.append(raw_NK[:, self.member])
                continue
            scores_NK = standardise(raw_NK, np.array(self.meta["mean"]), np.array(self.meta["std"]))
            sides.append(aggregate(scores_NK, self.reward["aggregate"], self.reward["uncertainty_penalty"]))
        return [self.unit * float(m) for m in sides[0] - sides[1]]

    def sampled(self, steps: Iterable[int], datasets: Datasets) -> list[float]:
        """Margins (logits) of the best- over the worst-scored completion of each prompt, negative if gold disagrees."""
        prompts, wanted = {p.id: p for p in datasets.prompts("train")}, set(steps)
        found: list[float] = []
        for row in read_jsonl(self.run / "trace.jsonl"):
            if row.get("event") != "prompt" or row["step"] not in wanted:
                continue
            scored = sorted((c["score"], c["text"]) for c in row["completions"] if c["score"] is not None)
            golds: list[float] = []
            for _, text in (scored[-1], scored[0]):
                gold = datasets.gold(Sample(prompts[row["prompt_id"]], text))
                assert gold is not None, "pocket/assistant has a gold score"
                golds.append(float(gold["value"]))
            margin = self.unit * (scored[-1][0] - scored[0][0])
            if golds[0] != golds[1] and margin > 0:
                found.append(margin if golds[0] > golds[1] else -margin)
        return found


def table(margins: Mapping[str, Mapping[str, list[float]]], bins: Mapping[str, Mapping[str, list[Bin]]]) -> str:
    """A line per reward and kind of pairs."""
    lines = [
        "| reward | pairs | number | right, all | top decile: implied | right | gap | error over deciles |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for reward, kinds in bins.items():
        for kind, rows in kinds.items():
            values, top = np.array(margins[reward][kind]), rows[-1]
            lines.append(
                f"| {reward} | {kind} | {len(values)} | {points(values).mean():.3f} | {top.confidence:.3f} | "
                f"{top.right:.3f} ({top.low:.3f} to {top.high:.3f}) | {top.gap:+.3f} | "
                f"{expected_calibration_error(rows):.3f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Pool the runs of each reward, print a line per kind, record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=Path, nargs="+", required=True, help="runs of lambda_sweep.py, pooled by name")
    parser.add_argument("--last", type=int, default=3, help="steps at the beginning and at the end")
    parser.add_argument("--record", type=Path, help="write every figure here")
    args = parser.parse_args()
    registry = Registry(disabled=())
    dataset = DatasetSettings.model_validate({"name": "pocket", "subset": "assistant"}, context={"registry": registry})
    ctx = BuildContext(config=RunConfig.model_construct(seed=0, dataset=dataset), registry=registry, seed=0)
    datasets = Datasets(dataset, ctx)
    margins: dict[str, dict[str, list[float]]] = {}
    for run in sorted((r for r in args.runs if (r / "summary.json").is_file()), key=lambda r: (r.name, r.parent.name)):
        judged = Judged(run)
        end = int(json.loads((run / "summary.json").read_text())["steps"])
        pooled = margins.setdefault(run.name, {kind: [] for kind in KINDS})
        pooled[KINDS[0]] += judged.heldout()
        pooled[KINDS[1]] += judged.sampled(range(1, 1 + args.last), datasets)
        pooled[KINDS[2]] += judged.sampled(range(end - args.last + 1, end + 1), datasets)
    bins = {name: {kind: deciles(np.array(rows)) for kind, rows in kinds.items()} for name, kinds in margins.items()}
    if args.record:
        shown = {
            name: {kind: [{**b._asdict(), "gap": b.gap} for b in rows] for kind, rows in kinds.items()}
            for name, kinds in bins.items()
        }
        args.record.write_text(
            json.dumps({"runs": [f"{r.parent.name}/{r.name}" for r in args.runs], "deciles": shown}) + "\n"
        )
    print(table(margins, bins))


if __name__ == "__main__":
    main()
