"""A run per lambda and one under a single reward model; gold at its best and at the end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_studies.common.pocket import first_member
from rlhf_studies.lambda_sweep.config import LambdaSweepConfig
from rlhf_study.runs import Run, train
from rlhf_study.study import Study
from rlhf_study.tables import markdown, spread

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
COLUMNS = {
    "gold at its best": "gold_best",
    "at step": "best_step",
    "gold at the end": "gold_end",
    "right": "right",
    "hollow": "hollow",
    "words": "words",
    "KL": "kl",
}


class LambdaSweep(Study[LambdaSweepConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        trainer = {**TRAINER, "steps": self.config.steps}
        common = {"seed": seed, "dataset": "pocket/assistant", "trainer": trainer}
        runs: dict[str, Run] = {}
        for value in self.config.lambdas:
            reward = {"name": "ensemble", "uncertainty_penalty": value}
            runs[f"lambda {value:g}"] = train(
                folder / f"lambda-{value:g}", {**common, "reward": reward}, self.config.train, self.config.ensemble
            )
        member = first_member(next(iter(runs.values())))
        reward = {"name": "bradley_terry", "path": str(member)}
        runs["single"] = train(folder / "single", {**common, "reward": reward}, self.config.train)
        return {name: figures(run) for name, run in runs.items()}

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        variants = dict.fromkeys(name for result in results.values() for name in result)
        rows = [
            (name, *(spread(result[name][key] for result in results.values()) for key in COLUMNS.values()))
            for name in variants
        ]
        return markdown(("reward", *COLUMNS), rows)


def figures(run: Run) -> dict[str, Any]:
    gold = {int(row["step"]): row for row in run.rows("eval/gold/value")}
    values = {step: float(row["eval/gold/value"]) for step, row in gold.items()}
    best, last = max(values, key=lambda step: values[step]), max(values)
    after = run.summary["evaluation_after"]
    return {
        "gold_start": values[0],
        "gold_best": values[best],
        "best_step": best,
        "gold_end": values[last],
        "steps": last,
        **{key: float(gold[last][f"eval/gold/{key}"]) for key in ("right", "hollow", "words")},
        "kl": float(run.rows("kl")[-1]["kl"]),
        "reward_start": float(gold[0]["eval/reward/mean"]),
        "reward_end": float(gold[last]["eval/reward/mean"]),
        "members_end": {key.rpartition("/")[2]: value for key, value in after.items() if "/member_" in key},
        "win_rate": run.summary["gold_win_rate"],
        "seconds": run.summary["seconds"],
        "curve": [[step, value] for step, value in values.items()],
    }
