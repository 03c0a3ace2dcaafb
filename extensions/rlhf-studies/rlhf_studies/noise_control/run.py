"""A run per variant, reward and seed; right answers before and after, and how far the weights went."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.config import parse_settings
from rlhf_studies.noise_control.config import NoiseControlConfig
from rlhf_study.runs import Run, train
from rlhf_study.study import Study
from rlhf_study.tables import markdown, spread

RIGHT = "reward/part/truth/raw"
SUMS = {"name": "pocket", "subset": "arithmetic"}
SHARED: dict[str, Any] = {
    # Four copies of the 139 held-out sums: each is asked four times, or chance would decide between the variants.
    "dataset": {"sources": [{"source": SUMS, "label": f"copy{n}"} for n in range(1, 5)]},
    "trainer": {
        "name": "grpo",
        "eval_samples": 1000,
        "kl": {"track": True},
        "checkpoint_every": 0,
        "trace_prompts": 0,
    },
}
COLUMNS = {
    "right before": "before",
    "right after": "after",
    "KL": "kl",
    "gradient": "grad_norm",
    "weights moved": "moved",
}


class NoiseControl(Study[NoiseControlConfig]):
    def reward(self, name: str) -> dict[str, Any]:
        """The reward that trains, and the verifier beside it, with weight 0, that tells the truth."""
        verifier = {"name": "verifier"}
        trains: Mapping[str, Any] = {
            "verifier": verifier,
            "shuffled": {"name": "shuffled", "of": verifier},
            "random": {"name": "random", "rate": self.config.rate},
        }
        parts = {"trains": {"reward": trains[name]}, "truth": {"reward": verifier, "weight": 0}}
        return {"name": "composite", "parts": parts}

    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        """Figures by variant ("" is the defaults) and reward."""
        by_variant: dict[str, Any] = {}
        for n, variant in enumerate(("", *self.config.variants)):
            changes = parse_settings(part for part in variant.split(",") if part)
            by_variant[variant] = {}
            for name in self.config.rewards:
                settings = {"seed": seed, "reward": self.reward(name), "trainer": {"steps": self.config.steps}}
                run = train(folder / f"variant-{n}" / name, SHARED, settings, self.config.train, changes)
                by_variant[variant][name] = figures(run)
        return by_variant

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        rows = [
            (
                variant or "nothing",
                name,
                *(spread(result[variant][name][key] for result in results.values()) for key in COLUMNS.values()),
            )
            for variant, rewards in next(iter(results.values())).items()
            for name in rewards
        ]
        return markdown(("changed", "reward", *COLUMNS), rows)


def figures(run: Run) -> dict[str, Any]:
    held_out = [float(row[f"eval/{RIGHT}"]) for row in run.rows(f"eval/{RIGHT}")]
    steps = run.rows("grad_norm")
    return {
        "before": held_out[0],
        "after": held_out[-1],
        "trained_right": [float(row[RIGHT]) for row in steps],
        "kl": float(steps[-1]["kl"]),
        "grad_norm": sum(float(row["grad_norm"]) for row in steps) / len(steps),
        "moved": moved(run),
        "seconds": run.summary["seconds"],
    }


def moved(run: Run) -> float:
    """Euclidean distance of the trained weights from the first ones, over the norm of these."""
    from rlhf_core.models import ModelConfig, load_policy

    first, last = (load_policy(ModelConfig(path=str(path))).model.state_dict() for path in ("pocket", run.final))
    change = sum(float((last[name].double() - w.double()).square().sum()) for name, w in first.items())
    return (change / sum(float(w.double().square().sum()) for w in first.values())) ** 0.5
