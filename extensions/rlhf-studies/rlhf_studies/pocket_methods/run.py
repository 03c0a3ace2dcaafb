"""A supervised run, a run that trains the reward models, and one run per method."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.config import Registry
from rlhf_studies.pocket_methods.config import PocketMethodsConfig
from rlhf_study.runs import Run, train
from rlhf_study.study import Study
from rlhf_study.tables import markdown, spread

SAMPLED = {"sample_prompts": 200, "sampling": {"max_tokens": 48}}
SFT = {
    # Short on purpose: demonstrations until the policy is perfect would leave nothing to prefer.
    "name": "sft",
    "max_steps": 12,
    "batch_size": 32,
    "micro_batch_size": 32,
    "eval_every": 0,
    "optimizer": {"learning_rate": 1e-4, "warmup_steps": 2},
    **SAMPLED,
}
MEASURE = {
    # A run that learns nothing: it trains the reward models, and measures the fine-tuned policy by them.
    "name": "dpo",
    "max_steps": 1,
    "batch_size": 2,
    "micro_batch_size": 2,
    "optimizer": {"learning_rate": 1e-12, "warmup_steps": 0},
    **SAMPLED,
}
COLUMNS = {
    "win rate over the SFT policy": "gold_win_rate",
    "gold": "gold",
    "right": "right",
    "proxy reward": "reward",
    "KL": "kl",
    "hollow": "hollow",
    "tokens": "length",
    "seconds": "seconds",
}
Row = dict[str, float | None]


class PocketMethods(Study[PocketMethodsConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Row]:
        common = {"seed": seed, "dataset": "pocket/assistant"}
        sft = train(folder / "sft", {**common, "trainer": {**SFT, **self.config.sft}})
        reward = {"name": "ensemble", **self.config.reward}
        start = {**common, "model": {"path": str(sft.final)}, "reward": reward}
        measured = train(folder / "reward", {**start, "trainer": {**MEASURE, **self.config.measure}})
        by_method = {"sft": {**figures(sft.summary), **by_proxy(measured)}}
        for method in self.config.methods:
            by_method[method] = figures(train(folder / method, start, recipe(method), self.config.train).summary)
        return by_method

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        rows: list[list[str]] = []
        for method in next(iter(results.values())):
            cells = [spread(result[method][key] for result in results.values()) for key in COLUMNS.values()]
            cells[0] += " (over the pocket model)" if method == "sft" else ""
            rows.append([method, *cells])
        return markdown(("method", *COLUMNS), rows)


def figures(summary: Mapping[str, Any]) -> Row:
    """The table's columns; KL is k3 in nats per token from the run's start, of held-out samples or last rollouts."""
    after = summary["evaluation_after"]
    return {
        "gold_win_rate": summary["gold_win_rate"],
        "gold": after["eval/gold/value"],
        "right": after["eval/gold/right"],
        "reward": after.get("eval/reward/mean"),
        "kl": after.get("eval/kl", summary.get("kl_last")),
        "hollow": after["eval/gold/hollow"],
        "length": after["eval/completion_length/mean"],
        "seconds": summary["seconds"],
    }


def by_proxy(measured: Run) -> Row:
    return {
        "reward": measured.summary["evaluation_before"]["eval/reward/mean"],
        "reward_seconds": measured.summary["seconds"],
        "reward_accuracy": measured.summary["reports"]["ensemble"]["heldout"]["ensemble"]["accuracy"],
    }


def recipe(method: str) -> dict[str, Any]:
    """The trainer's own settings for the pocket model, and those of its companions; without a KL penalty in GRPO."""
    recipes: Any = getattr(Registry(disabled=()).load("trainer", method), "recipes")  # noqa: B009
    penalty = {"kl": {"coefficient": 0.0}} if method == "grpo" else {}
    return {**recipes["pocket"], "trainer": {**recipes["pocket"].get("trainer", {}), **penalty, "name": method}}
