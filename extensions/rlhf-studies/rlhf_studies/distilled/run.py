"""A teacher for each seed, and one run per method; of each the last evaluation within the tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rlhf_studies.distilled.config import DistilledConfig
from rlhf_studies.pocket_methods.run import recipe
from rlhf_study.runs import Run, train
from rlhf_study.study import Study
from rlhf_study.tables import markdown

T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Quantiles of Student's t for so many seeds."""
GOLD, LEAST = "eval/gold/value", 450
"""Fewest tokens of a batch of 64 completions."""
RATE = {"learning_rate": 3e-4, "warmup_steps": 2, "schedule": "constant"}
"""That of on-policy distillation; a schedule that ends with so few tokens costs SFT half of its gain."""


class Distilled(Study[DistilledConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        config, common = self.config, {"seed": seed, "dataset": "pocket/assistant"}
        longer = {"max_steps": config.teacher_steps, "sample_prompts": config.evaluated}
        taught = train(folder / "teacher", common, recipe("sft"), self.settings("sft"), {"trainer": longer})
        figures: dict[str, Any] = {
            "teacher": {"gold": taught.rows(GOLD)[-1][GOLD], "start": taught.rows(GOLD)[0][GOLD]}
        }
        for method in config.methods:
            reward = {"reward": {"name": "ensemble"}} if method == "grpo" else {}
            given = {"trainer": {"teacher": {"path": str(taught.final)}}} if "distill" in method else {}
            rate = {"trainer": {"optimizer": RATE}} if method in ("sft", "distill_offline") else {}
            run = train(
                folder / method, common, recipe(method), reward, given, rate, self.settings(method), config.train
            )
            figures[method] = within(run, config.tokens)
            run.drop_models()
        taught.drop_models()
        return figures

    def settings(self, method: str) -> dict[str, Any]:
        sizes = {"micro_batch_size": 64, "eval_every": 2, "sampling": {"max_tokens": 48}, "checkpoint_every": 0}
        steps, prompts = -(-self.config.tokens // LEAST), self.config.evaluated
        if method in ("sft", "distill_offline"):
            more = {"batch_size": 64, "epochs": 20, "max_steps": steps, "eval_samples": 2, "sample_prompts": prompts}
        else:
            more = {"rollout_batch_size": 64, "steps": steps, "eval_samples": prompts, "gold_samples": prompts}
        return {"trainer": {**sizes, **more, "trace_prompts": 0}}

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        gold = {name: [row[name]["gold"] for row in results.values()] for name in next(iter(results.values()))}
        rows = [["start", interval([row["teacher"]["start"] for row in results.values()]), "", ""]]
        for name, values in gold.items():
            tokens = "-" if name == "teacher" else f"{fmean(row[name]['tokens'] for row in results.values()):.0f}"
            over = "" if name == "sft" else interval([a - b for a, b in zip(values, gold["sft"])])
            rows.append([name, interval(values), over, tokens])
        return markdown(("method", "gold score", "over sft, by seed", "tokens"), rows)


def within(run: Run, tokens: int) -> dict[str, float]:
    """The last evaluation before the run has learned from more tokens."""
    seen, last = 0.0, {"gold": float("nan"), "tokens": 0.0}
    for row in run.rows():
        seen += row.get("train/tokens", 0.0)
        if GOLD in row and seen <= tokens:
            last = {"gold": row[GOLD], "tokens": seen}
    return last


def interval(values: Sequence[float]) -> str:
    """Mean and 95 % interval over seeds."""
    mean = fmean(values)
    half = T_95[len(values)] * stdev(values) / len(values) ** 0.5 if len(values) in T_95 else 0.0
    return f"{mean:.3f} ± {half:.3f}" if half else f"{mean:.3f}"
