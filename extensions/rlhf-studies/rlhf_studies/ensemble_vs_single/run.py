"""Two runs a seed, the table of their curves, and the plot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_studies.common.plots import panels
from rlhf_studies.common.pocket import first_member
from rlhf_studies.ensemble_vs_single.config import EnsembleVsSingleConfig
from rlhf_study.runs import Run, train
from rlhf_study.study import Study
from rlhf_study.tables import markdown, mean, spread

CURVES = {
    "gold": "eval/gold/value",
    "right": "eval/gold/right",
    "proxy reward": "eval/reward/mean",
    "hollow rate": "eval/gold/hollow",
    "words": "eval/gold/words",
    "KL": "kl",
}
UNRANKED = ("hollow rate", "words", "KL")
"""Curves of which the highest value is not the best."""
TRAINER = {
    "name": "grpo",
    "eval_every": 5,
    "eval_samples": 200,
    "checkpoint_every": 0,
    "kl": {"coefficient": 0},
}


class EnsembleVsSingle(Study[EnsembleVsSingleConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        common = {"seed": seed, "trainer": {**TRAINER, "steps": self.config.steps}}
        ensemble = train(
            folder / "ensemble", {**common, "reward": {"name": "ensemble"}}, self.config.train, self.config.ensemble
        )
        reward = {"name": "bradley_terry", "path": str(first_member(ensemble))}
        single = train(folder / "single", {**common, "reward": reward}, self.config.train)
        return {
            "ensemble": curves(ensemble),
            "single": curves(single),
            "heldout_accuracy": ensemble.summary["reports"]["ensemble"]["heldout"],
        }

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        rows: list[tuple[str, ...]] = []
        for label in CURVES:
            for reward in ("single", "ensemble"):
                series = [[value for _, value in r[reward][label]] for r in results.values()]
                start = f"{mean([s[0] for s in series]):.3f}"
                best = "" if label in UNRANKED else f"{mean([max(s) for s in series]):.3f}"
                rows.append((label, reward, start, best, spread([s[-1] for s in series])))
        headers = ("measure", "reward", "at the start", "best", "at the end (lowest to highest seed)")
        return markdown(headers, rows)

    def save(self, results: Mapping[int, Mapping[str, Any]], folder: Path) -> None:
        with panels(folder / "result.png", 2, 3, (12, 6)) as axes:
            for panel, label in zip(axes, CURVES):
                for reward, colour in (("single", "tab:red"), ("ensemble", "tab:blue")):
                    for n, result in enumerate(results.values()):
                        steps, values = zip(*result[reward][label])
                        name = reward if n == 0 else None
                        panel.plot(steps, values, color=colour, alpha=0.7, linewidth=1, label=name)
                panel.set(title=label, xlabel="step")
            axes[0].legend()


def curves(run: Run) -> dict[str, list[list[float]]]:
    return {label: [[row["step"], row[key]] for row in run.rows(key)] for label, key in CURVES.items()}
