"""A run per arm, and its evaluations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.runs import wilson
from rlhf_studies.lookup_grpo.config import LookupGrpoConfig
from rlhf_studies.lookup_grpo.unmasked import ENTRY
from rlhf_study.runs import Run, log_of, offering, rlhf
from rlhf_study.study import Study
from rlhf_study.tables import markdown

CALLS = (2, 3, 4, 5, 6)
ARMS: Mapping[str, Mapping[str, object]] = {
    "outcome": {},
    "turn": {"advantage.name": "turn", "environment.step_reward": 0.1, "reward.turn_weight": 0},
    "shuffled": {"reward": json.dumps({"name": "shuffled", "of": {"name": "environment"}})},
    "unmasked": {"agent.name": "unmasked"},
}


class LookupGrpo(Study[LookupGrpoConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        return {arm: self.figures(self.trained(arm, seed, folder)) for arm in self.config.arms}

    def trained(self, arm: str, seed: int, folder: Path) -> Run:
        target, heldout = folder / arm, self.config.heldout
        sources = [
            {"source": {"name": "lookup", "calls": [n], "prompts": heldout}, "label": f"calls{n}"} for n in CALLS
        ]
        shared = {"trainer.eval_samples": heldout, "trainer.checkpoint_every": 10, "seed": seed}
        changes = {"dataset": json.dumps({"sources": sources}), **shared, **ARMS[arm]}
        settings = [*(f"{key}={value}" for key, value in changes.items()), *self.config.settings]
        new = ["--algo", "grpo", "--env", "lookup", "--run-dir", target, *(w for s in settings for w in ("--set", s))]
        if not (target / "summary.json").is_file():
            words = ["--resume", target] if (target / "plan.json").is_file() else new
            rlhf("train", *words, log=log_of(target), path=offering(folder, ENTRY))
        return Run(target)

    def figures(self, run: Run) -> dict[str, Any]:
        rows = run.rows("eval/reward/mean")
        ends = (rows[0], rows[-1])
        before, after = (float(row["eval/reward/mean"]) for row in ends)
        return {
            "before": before,
            "after": after,
            "after_interval": list(wilson(after, self.config.heldout)),
            "points": 100 * (after - before),
            "curve": {str(row["step"]): row["eval/reward/mean"] for row in rows},
            "by_calls": {str(n): [row.get(f"eval/calls{n}/reward/mean") for row in ends] for n in CALLS},
            "turns": [row.get("eval/turns/mean") for row in ends],
            "steps": len(run.rows("loss")),
            "seconds": run.summary["seconds"],
        }

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        rows = [
            (arm, seed, *(f"{x:.3g}" for x in (row["before"], row["after"], row["points"], row["seconds"] / 60)))
            for seed, result in results.items()
            for arm, row in result.items()
        ]
        return markdown(("arm", "seed", "before", "after", "points", "minutes"), sorted(rows))
