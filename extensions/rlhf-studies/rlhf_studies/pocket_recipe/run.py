"""One run per seed and variant, and its win rate by the gold score."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.config import parse_settings
from rlhf_studies.common.pocket import GOLD
from rlhf_studies.pocket_recipe.config import PocketRecipeConfig
from rlhf_study.runs import Run, train
from rlhf_study.study import Study
from rlhf_study.tables import interval, markdown

DEFAULT = {"trainer": {"name": "grpo"}, "reward": {"name": "ensemble"}}


class PocketRecipe(Study[PocketRecipeConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        """Figures by variant; "" is the command as it is."""
        by_variant: dict[str, Any] = {}
        for n, variant in enumerate(("", *self.config.variants)):
            changes = parse_settings(part for part in variant.split(",") if part)
            run = train(folder / f"variant-{n}", {"seed": seed, **DEFAULT}, self.config.train, changes)
            by_variant[variant] = figures(run)
        return by_variant

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        rows = [
            (
                variant or "nothing",
                seed,
                interval((result[variant]["gold_win_rate"], *result[variant]["gold_win_rate_interval"])),
                *(f"{result[variant][key]:.3f}" for key in GOLD.values()),
            )
            for variant in next(iter(results.values()))
            for seed, result in results.items()
        ]
        return markdown(("changed", "seed", "win rate", *GOLD), rows)


def figures(run: Run) -> dict[str, Any]:
    columns = ("seconds", "gold_win_rate", "gold_win_rate_interval")
    return {**{key: run.summary[key] for key in columns}, **run.summary["evaluation_after"]}
