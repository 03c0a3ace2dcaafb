"""One run per seed and variant, and its win rate by the gold score."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.config import parse_settings
from rlhf_studies.common.runs import GOLD, Run, train
from rlhf_studies.common.study import Study
from rlhf_studies.common.tables import interval, markdown
from rlhf_studies.pocket_recipe.config import PocketRecipeConfig

DEFAULT = {"trainer": {"name": "grpo"}, "reward": {"name": "ensemble"}}


class PocketRecipe(Study[PocketRecipeConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        """Figures by variant; "" is the command as it is."""
        found: dict[str, Any] = {}
        for n, variant in enumerate(("", *self.config.variants)):
            changes = parse_settings(part for part in variant.split(",") if part)
            run = train(folder / f"variant-{n}", {"seed": seed, **DEFAULT}, self.config.train, changes)
            found[variant] = figures(run)
        return found

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        rows = [
            (
                variant or "nothing",
                seed,
                interval((found[variant]["gold_win_rate"], *found[variant]["gold_win_rate_interval"])),
                *(f"{found[variant][key]:.3f}" for key in GOLD.values()),
            )
            for variant in next(iter(results.values()))
            for seed, found in results.items()
        ]
        return markdown(("changed", "seed", "win rate", *GOLD), rows)


def figures(run: Run) -> dict[str, Any]:
    kept = ("seconds", "gold_win_rate", "gold_win_rate_interval")
    return {**{key: run.summary[key] for key in kept}, **run.summary["evaluation_after"]}
